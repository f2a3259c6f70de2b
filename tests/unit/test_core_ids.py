"""Identities: the same as the database's, and never shared by two pairs."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.ids import delivery_identity, message_identity

# PostgreSQL's text holds neither NUL nor surrogates.
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40)


def test_separators_in_ids_do_not_make_identities_alike():
    assert delivery_identity("a:b", "c") != delivery_identity("a", "b:c")
    assert delivery_identity("ab", "") != delivery_identity("a", "b")


@given(texts, texts, texts, texts)
def test_only_equal_pairs_share_an_identity(event_1, destination_1, event_2, destination_2):
    same_pair = (event_1, destination_1) == (event_2, destination_2)
    assert (delivery_identity(event_1, destination_1) == delivery_identity(event_2, destination_2)) is same_pair


def test_identities_have_the_promised_form():
    identity = delivery_identity("event", "destination")
    assert identity.startswith("dlv_")
    assert len(identity) == 36
    assert "." not in identity
    assert isinstance(message_identity(identity, 1), uuid.UUID)
    assert message_identity(identity, 1) != message_identity(identity, 2)
