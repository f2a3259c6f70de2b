alter table outrider.source_shadow drop column missed_in;
