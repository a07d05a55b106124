"""The lake: streams archived as Parquet, one table of the archive and what is live, and jobs on such tables.

Each job is a function of the module that has its name: `archive.archive()`, `compact.compact()`, `table.table()`, `audit.audit()`.
"""
