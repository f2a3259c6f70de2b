"""Secrets at rest: they open with their key, in their place, and nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.sealing import SealingKeyError, UnsealError, Vault, is_sealed, new_key

OLD, NEW = new_key("old"), new_key("new")
VAULT = Vault.of(OLD)
PLACE = {"purpose": "signing", "owner": "acme"}


@given(st.text(max_size=300))
def test_what_was_sealed_opens_again_and_shows_nothing(text):
    sealed = VAULT.seal(text, **PLACE)
    assert is_sealed(sealed)
    assert VAULT.open(sealed, **PLACE) == text
    assert len(text) < 6 or text not in sealed
    assert VAULT.seal(text, **PLACE) != sealed


@pytest.mark.parametrize("place", [{"purpose": "authorization"}, {"owner": "other"}])
def test_a_sealed_text_opens_only_where_it_belongs(place):
    sealed = VAULT.seal("secret", **PLACE)
    with pytest.raises(UnsealError, match="belongs to another destination"):
        VAULT.open(sealed, **PLACE | place)


def test_every_changed_character_is_noticed():
    sealed = VAULT.seal("secret", **PLACE)
    for place in range(len("sealed:1:old:"), len(sealed)):
        changed = sealed[:place] + ("A" if sealed[place] != "A" else "B") + sealed[place + 1 :]
        try:
            opened = VAULT.open(changed, **PLACE)
        except UnsealError:
            continue
        # Base64 leaves a few bits of its last character unused.
        assert opened == "secret"
        assert sealed[place + 1 : place + 2] in ("=", ":", "")


@pytest.mark.parametrize(
    "text", ["sealed:1:", "sealed:1:old", "sealed:1:old:AAAA:AAAA", "sealed:1:old:!:!", "sealed:1:old:::"]
)
def test_a_damaged_text_is_said_to_be_damaged(text):
    with pytest.raises(UnsealError):
        VAULT.open(text, **PLACE)


def test_a_missing_key_is_named():
    sealed = VAULT.seal("secret", **PLACE)
    with pytest.raises(UnsealError, match="key old, which is not in OUTRIDER_SECRETS_KEYS"):
        Vault.of(NEW).open(sealed, **PLACE)
    with pytest.raises(UnsealError, match="not the one of that id"):
        Vault.of(new_key("old")).open(sealed, **PLACE)


def test_a_new_key_renews_the_wrapping_and_leaves_the_content():
    sealed = VAULT.seal("secret", **PLACE)
    renewed = Vault.of(f"{NEW} {OLD}").reseal(sealed, **PLACE)
    assert renewed.startswith("sealed:1:new:")
    assert renewed.rpartition(":")[2] == sealed.rpartition(":")[2]
    assert Vault.of(NEW).open(renewed, **PLACE) == "secret"
    assert Vault.of(f"{NEW}, {OLD}").reseal(renewed, **PLACE) == renewed


def test_without_a_key_texts_stay_as_they_are_and_are_sealed_later():
    plain = Vault.of(None)
    assert plain.seal("whsec_AAAA", **PLACE) == "whsec_AAAA"
    assert plain.reseal("whsec_AAAA", **PLACE) == "whsec_AAAA"
    assert VAULT.open("whsec_AAAA", **PLACE) == "whsec_AAAA"
    assert VAULT.open(VAULT.reseal("whsec_AAAA", **PLACE), **PLACE) == "whsec_AAAA"


@pytest.mark.parametrize("form", ["nonsense", "a:b", "a:AAAA", ":{key}", "old:{key} old:{key}", "a b:{key}"])
def test_keys_that_are_none_are_refused_and_not_repeated(form):
    with pytest.raises(SealingKeyError) as raised:
        Vault.of(form.format(key=OLD.partition(":")[2]))
    assert OLD.partition(":")[2] not in str(raised.value)


def test_a_vault_does_not_show_its_keys():
    assert OLD.partition(":")[2] not in repr(VAULT)
    assert str(VAULT.keys["old"]) not in repr(VAULT)


@pytest.mark.parametrize("key_id", ["", "a b", "a:b", "x" * 33])
def test_an_id_that_the_setting_does_not_take_is_refused(key_id):
    with pytest.raises(SealingKeyError):
        new_key(key_id)
