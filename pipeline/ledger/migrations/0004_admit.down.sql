drop function outrider.delivery_status;
drop function outrider.admit;
drop function outrider.check_headers;
drop function outrider.is_deliverable_at;
drop function outrider.message_identity;
drop function outrider.delivery_identity;
drop function outrider.identity_part;
