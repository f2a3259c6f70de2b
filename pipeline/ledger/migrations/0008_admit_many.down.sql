drop function outrider.admit_many;
