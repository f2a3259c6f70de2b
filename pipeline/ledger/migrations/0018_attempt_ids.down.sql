drop function outrider.raise_attempt_ids;
drop function outrider.given_attempt_ids;
