"""The lake: streams archived as Parquet, and one table of the archive and what is live.

Each job is a function of the module that has its name: `archive.archive()`, `compact.compact()`, `table.table()`.
"""
