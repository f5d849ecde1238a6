"""What Millpond's parts say to one another: identifiers, quantities, resource descriptions, events and bodies.

Data only. May import the standard library, pydantic and packaging; nothing of Millpond.
"""
