"""The billing service: knows what it cost. Segments, price books, charges, statements, exports."""
