drop function outrider.replay_verdict;
drop table outrider.replay_item;
drop table outrider.replay_wanted;
drop table outrider.replay_cursor;
drop table outrider.replay;
