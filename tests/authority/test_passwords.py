"""Passwords: a verifier proves a password and is none, and both sides have to know it."""

import pytest

from busway.authority.passwords import Cost, Verifier, decoy, prove

COST = Cost(b"0123456789abcdef", 7168, 2, 1)


def test_the_right_password_is_proved_for_one_context_only():
    verifier = Verifier.make("secret", COST)
    proof, server = prove("secret", COST, b"context")
    assert verifier.verify(proof, b"context")
    assert not verifier.verify(proof, b"other context")
    assert verifier.prove(b"context") == server
    assert verifier.matches("secret")
    assert not verifier.matches("Secret")


@pytest.mark.parametrize("proof", [b"", b"\0" * 32, None, "text", b"\0" * 33])
def test_other_proofs_are_wrong(proof: object):
    assert not Verifier.make("secret", COST).verify(proof, b"context")


def test_a_verifier_survives_its_text_and_has_no_password():
    verifier = Verifier.make("secret", COST)
    assert Verifier.parse(str(verifier)) == verifier
    assert "secret" not in str(verifier)
    assert "stored" not in repr(verifier)
    assert str(Verifier.make("secret")) != str(Verifier.make("secret"))  # new salts


def test_who_has_the_verifier_can_not_log_in():
    verifier = Verifier.make("secret", COST)
    for stolen in (verifier.stored, verifier.server):
        assert not verifier.verify(stolen, b"context")


def test_two_spellings_of_one_letter_are_the_same_password():
    assert Verifier.make("caf\u00e9", COST).matches("cafe\u0301")


@pytest.mark.parametrize("text", ["", "secret", "argon2id$m=1,t=1,p=1$AA==$AA==$AA==", "$$$$", "a$b$c$d$e"])
def test_texts_that_are_no_verifier(text: str):
    with pytest.raises(ValueError, match="no verifier"):
        Verifier.parse(text)


def test_a_client_does_not_prove_itself_cheaply():
    for memory, passes in ((8, 1), (7168, 1), (1 << 21, 2), (7168, 65)):
        with pytest.raises(ValueError, match="out of bounds"):
            Cost(b"0123456789abcdef", memory, passes, 1)


def test_an_unknown_user_has_always_the_same_salt():
    assert decoy("bob", b"key") == decoy("bob", b"key") != decoy("eve", b"key")
