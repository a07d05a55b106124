"""The lake: archives streams as Parquet, offers one table of archived and live messages, and has jobs on such tables.

Each job is a function of the module that has its name: `archive.archive()`, `compact.compact()`, `table.table()`,
`audit.audit()`.
"""
