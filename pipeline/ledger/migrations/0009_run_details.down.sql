drop index outrider.run_by_act;
drop index outrider.run_by_start;
alter table outrider.run
  drop column after,
  drop column before,
  drop column parameters;
