-- The first look that should have claimed the row, by its transaction: who admitted in an older one may have held the row.
alter table outrider.source_shadow add column missed_in xid8;
