"""The console: pages of a browser, and JSON, about what is in a store. It only reads."""
