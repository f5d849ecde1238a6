"""The asynchronous client. All but `sending` and `nouns` is made from the synchronous one by tools/build_client.py."""
