"""The tables that registry owns, as the migrations made them."""

from sqlalchemy import MetaData

from millpond_kernel.tables import kernel_tables

metadata = MetaData(schema="registry")
kernel_tables(metadata)
