"""The tables that quota owns, as the migrations made them."""

from sqlalchemy import MetaData

from millpond_kernel.tables import kernel_tables

metadata = MetaData(schema="quota")
kernel_tables(metadata)
