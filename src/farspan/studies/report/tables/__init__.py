"""Tables of the report, as data; Markdown and CSV."""
