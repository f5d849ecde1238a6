"""The tables that billing owns, as the migrations made them."""

from sqlalchemy import MetaData

from millpond_kernel.tables import kernel_tables

metadata = MetaData(schema="billing")
kernel_tables(metadata)
