-- Rows of an object that the load's condition (`Columns.where`) excluded; `rows` counts the rows in the table.
ALTER TABLE storeside.loads ADD COLUMN IF NOT EXISTS filtered UInt64 DEFAULT 0 AFTER rejected;
