"""The login of a client, as the server sees it: a machine that gets the maps of HELLO and LOGIN and decides.

The driver in `busway.broker.access` sends its challenges and carries out its verdicts. All refusals look the same to the
client; the reason is for the log.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias

import msgspec

from busway.authority import keys, passwords
from busway.authority.passwords import Verifier
from busway.authority.policy import ANONYMOUS, Policy
from busway.authority.tokens import Bearer, TokenError

Method: TypeAlias = Literal["password", "key", "token"]

NONCE: Final = 16
"""Random bytes from each side."""


class Claim(msgspec.Struct, frozen=True):
    """Who a client says it is, in its HELLO."""

    user: Annotated[str, msgspec.Meta(max_length=128)] = ""
    method: Method | None = None
    """How it will prove that; None: by its certificate or the user of its process."""
    nonce: Annotated[bytes, msgspec.Meta(min_length=NONCE, max_length=64)] = b""
    token: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """The map of LOGIN."""

    proof: bytes = b""


@dataclass(frozen=True, slots=True)
class Peer:
    """What the transport knows of the other end."""

    scheme: str
    uid: int | None = None
    certificates: tuple[str, ...] = ()
    expires: float | None = None
    """When the certificate expires, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """What the client has to answer."""

    map: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Admitted:
    """The client has proved who it is."""

    user: str
    roles: tuple[str, ...] = ()
    expires: float | None = None
    """When its proof expires, in seconds since 1970."""
    proof: bytes | None = None
    """The proof of the server, for its WELCOME."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The client is refused. `reason` is for the log."""

    user: str
    reason: str
    guess: bool = True
    """Whether it was an attempt to guess a secret."""


Verdict: TypeAlias = Admitted | Refused


class TokenCheck(Protocol):
    """Checks tokens, such as a TokenVerifier."""

    def check(self, token: object, now: float) -> Bearer:
        """The claims of a token. Raises TokenError."""


class Login:
    """The login of one connection."""

    def __init__(self, policy: Policy, claim: Claim, peer: Peer, session: int, *, nonce: bytes, secret: bytes) -> None:
        self._policy = policy
        self._claim = claim
        self._peer = peer
        self._nonce = nonce
        self._secret = secret
        self._context = context(claim, session, nonce)
        self._user = policy.users.get(claim.user)

    def begin(self, tokens: TokenCheck | None, now: float) -> Challenge | Verdict:
        """Decide on the HELLO. `now` is in seconds since 1970."""
        claim = self._claim
        if claim.method is None:
            return self._by_transport()
        if claim.method == "token":
            return self._by_token(tokens, now)
        if not claim.nonce:
            return Refused(claim.user, "the HELLO has no nonce", guess=False)
        if claim.method == "key":
            return Challenge({"nonce": self._nonce})
        verifier = self._verifier()
        cost = verifier.cost if verifier is not None else passwords.decoy(claim.user, self._secret)
        return Challenge({"nonce": self._nonce, **msgspec.structs.asdict(CostMap.of(cost))})

    def answer(self, answer: Answer) -> Verdict:
        """Decide on the LOGIN."""
        user, name = self._user, self._claim.user
        if user is None:
            return Refused(name, "there is no such user")
        if self._claim.method == "key":
            if any(keys.verify(public, answer.proof, self._context) for public in user.keys):
                return Admitted(name)
            return Refused(name, "none of the user's keys has signed the challenge")
        verifier = self._verifier()
        if verifier is None:
            return Refused(name, "the user has no password")
        if not verifier.verify(answer.proof, self._context):
            return Refused(name, "wrong password")
        return Admitted(name, proof=verifier.prove(self._context))

    def _verifier(self) -> Verifier | None:
        return Verifier.parse(self._user.password) if self._user is not None and self._user.password else None

    def _by_transport(self) -> Verdict:
        """Decide by the certificate, the user of the process, or that anonymous clients are allowed."""
        policy, peer, claimed = self._policy, self._peer, self._claim.user
        names = [policy.by_certificate[name] for name in peer.certificates if name in policy.by_certificate]
        proved = [Admitted(name, expires=peer.expires) for name in names]
        if peer.uid is not None and peer.uid in policy.by_uid:
            proved.append(Admitted(policy.by_uid[peer.uid]))
        if ANONYMOUS in policy.users:
            proved.append(Admitted(ANONYMOUS))
        for admitted in proved:
            if claimed in ("", admitted.user):
                return admitted
        if claimed:
            return Refused(claimed, "it gave no password, key or token, and its connection proves no such user")
        return Refused("", "it did not log in", guess=False)

    def _by_token(self, tokens: TokenCheck | None, now: float) -> Verdict:
        claimed = self._claim.user
        if tokens is None:
            return Refused(claimed, "the users file has no [tokens], so tokens are not accepted")
        try:
            bearer = tokens.check(self._claim.token, now)
        except TokenError as error:
            return Refused(claimed, str(error))
        if claimed not in ("", bearer.user):
            return Refused(claimed, f"the token is for {bearer.user!r}")
        roles = tuple(role for role in bearer.roles if role in self._policy.roles)
        if bearer.user not in self._policy.users and not roles:
            return Refused(bearer.user, "the user of the token has no role")
        return Admitted(bearer.user, roles, bearer.expires)


class CostMap(msgspec.Struct, frozen=True):
    """The cost of a password in the map of CHALLENGE."""

    salt: bytes
    memory: int
    passes: int
    lanes: int

    @classmethod
    def of(cls, cost: passwords.Cost) -> "CostMap":
        return cls(cost.salt, cost.memory, cost.passes, cost.lanes)

    @property
    def cost(self) -> passwords.Cost:
        """Raises ValueError for a cost that is too low or too high."""
        return passwords.Cost(self.salt, self.memory, self.passes, self.lanes)


def context(claim: Claim, session: int, nonce: bytes) -> bytes:
    """What a proof is about: the user, the method, the session, and the nonces of client and server."""
    parts = (claim.method or "", claim.user)
    return b"busway login 1\0" + b"".join(
        len(part).to_bytes(2) + part
        for part in (*(text.encode() for text in parts), session.to_bytes(8), claim.nonce, nonce)
    )
