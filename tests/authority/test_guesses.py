"""Guesses: how long attempts wait after failures."""

from busway.authority.guesses import ADDRESS, FIRST, FORGOTTEN, FREE, USER, Guesses


def failed(times: int, address: str = "10.0.0.1", user: str = "alice") -> Guesses:
    guesses = Guesses()
    for _ in range(times):
        guesses.failed(address, user, 0.0)
    return guesses


def test_a_few_failures_cost_nothing():
    assert failed(FREE - 1).delay("10.0.0.1", "alice", 0.0) == 0


def test_each_further_failure_doubles_the_delay_up_to_a_limit():
    assert failed(FREE).delay("10.0.0.1", "alice", 0.0) == FIRST
    assert failed(FREE + 1).delay("10.0.0.1", "alice", 0.0) == 2 * FIRST
    assert failed(100).delay("10.0.0.1", "alice", 0.0) == ADDRESS


def test_attempts_of_one_address_at_the_same_time_wait_for_each_other():
    guesses = failed(100)
    assert [guesses.delay("10.0.0.1", "alice", 0.0) for _ in range(3)] == [ADDRESS, 2 * ADDRESS, 3 * ADDRESS]


def test_a_user_that_is_guessed_from_elsewhere_waits_a_little_only():
    assert [failed(100).delay("10.0.0.2", "alice", 0.0) for _ in range(3)] == [USER] * 3


def test_others_do_not_wait():
    assert failed(100).delay("10.0.0.2", "bob", 0.0) == 0


def test_failures_are_forgotten_after_a_login_or_a_while():
    guesses = failed(100)
    assert guesses.delay("10.0.0.1", "alice", FORGOTTEN + 1) == 0
    guesses.passed("10.0.0.1", "alice")
    assert guesses.delay("10.0.0.1", "alice", 0.0) == 0


def test_memory_is_bounded():
    guesses = Guesses(most=10)
    for number in range(1000):
        guesses.failed(f"10.0.{number >> 8}.{number & 255}", f"user{number}", 0.0)
        guesses.delay(f"10.0.{number >> 8}.{number & 255}", f"user{number}", 0.0)
    assert len(guesses) == 10


def test_clients_of_this_host_have_no_address():
    assert failed(100, address="").delay("", "bob", 0.0) == 0
