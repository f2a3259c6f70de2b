drop table outrider_audit.record;
