-- The grants go with the tables.
drop publication outrider;
