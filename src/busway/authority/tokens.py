"""Bearer tokens (JWT): the settings of a users file, and the check of a token. Pure functions over the package PyJWT.

Only signatures with a key pair are accepted, so the JWKS file has no secret.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from busway.common.extras import install_command

ALGORITHMS: Final = ("EdDSA", "ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
LONGEST: Final = 16_384
"""Characters of a token."""


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Which tokens are accepted: signed with a key of `jwks`, for this audience and from this issuer."""

    jwks: Path
    audience: str
    issuer: str | None = None
    user: str = "sub"
    """The claim with the user's name."""
    roles: str = "roles"
    """The claim with the user's roles: a list, or a text with spaces."""
    leeway: float = 30.0
    """Seconds that clocks may differ."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """What a valid token says."""

    user: str
    roles: tuple[str, ...]
    expires: float
    """Seconds since 1970."""


class TokenError(ValueError):
    """A token was refused. The text is for the log of the broker, never for the client."""


class TokenVerifier:
    """Checks tokens against the keys of a JWKS file, which is read once."""

    def __init__(self, settings: TokenSettings) -> None:
        jwt = _jwt()
        self._settings = settings
        self._jwt = jwt
        try:
            keys = jwt.PyJWKSet.from_dict(json.loads(settings.jwks.read_bytes())).keys
        except (OSError, ValueError, jwt.PyJWTError) as error:
            raise ValueError(f"{settings.jwks} can't be used as JWKS file: {error}") from error
        self._keys = [key for key in keys if key.algorithm_name in ALGORITHMS]
        if not self._keys:
            raise ValueError(f"{settings.jwks} has no public key for one of {', '.join(ALGORITHMS)}")

    def check(self, token: object, now: float) -> Bearer:
        """The claims of a token. Raises TokenError."""
        settings, jwt = self._settings, self._jwt
        if not isinstance(token, str) or len(token) > LONGEST:
            raise TokenError(f"the token is no text of at most {LONGEST} characters")
        try:
            named = jwt.get_unverified_header(token).get("kid")
            fitting = [key for key in self._keys if named is None or key.key_id in {None, named}]
            claims = self._claims(token, fitting)
        except jwt.PyJWTError as error:
            raise TokenError(str(error)) from error
        self._check_times(claims, now)
        user, roles = claims.get(settings.user), claims.get(settings.roles, ())
        roles = roles.split() if isinstance(roles, str) else roles
        if not isinstance(user, str) or not user:
            raise TokenError(f"the claim {settings.user} has no name")
        if not isinstance(roles, list | tuple) or not all(isinstance(role, str) for role in roles):
            raise TokenError(f"the claim {settings.roles} is no list of names")
        return Bearer(user, tuple(roles), float(claims["exp"]) + settings.leeway)

    def _claims(self, token: str, keys: list[Any]) -> dict[str, Any]:
        """The claims of a token that one of the keys has signed. Times are checked by the broker's clock instead."""
        settings, jwt = self._settings, self._jwt
        options = {"require": ["exp"], "verify_exp": False, "verify_nbf": False, "verify_iat": False}
        for key in keys:
            try:
                claims: dict[str, Any] = jwt.decode(
                    token,
                    key,
                    algorithms=[key.algorithm_name],
                    audience=settings.audience,
                    issuer=settings.issuer,
                    options=options,
                )
            except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError):
                continue
            return claims
        raise TokenError("no key of the JWKS file has signed the token")

    def _check_times(self, claims: dict[str, Any], now: float) -> None:
        leeway = self._settings.leeway
        for name in ("exp", "nbf", "iat"):
            value = claims.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise TokenError(f"the claim {name} is no time")
            if name == "exp" and value + leeway <= now:
                raise TokenError("the token has expired")
            if name != "exp" and value - leeway > now:
                raise TokenError(f"the token is not valid yet ({name})")


def issue(key_file: str | Path, claims: dict[str, Any], *, key_id: str | None = None) -> str:
    """A token with these claims, signed with an Ed25519 key."""
    from busway.authority.keys import read_private  # noqa: PLC0415 - the package cryptography is optional

    headers = None if key_id is None else {"kid": key_id}
    token: str = _jwt().encode(claims, read_private(key_file), algorithm="EdDSA", headers=headers)
    return token


def jwks_of(key_file: str | Path) -> str:
    """The JWKS file with the public key of an Ed25519 key."""
    from busway.authority.keys import read_private  # noqa: PLC0415 - the package cryptography is optional

    algorithm = _jwt().get_algorithm_by_name("EdDSA")
    key = json.loads(algorithm.to_jwk(read_private(key_file).public_key()))
    return json.dumps({"keys": [key | {"alg": "EdDSA", "use": "sig"}]})


def _jwt() -> Any:
    try:
        import jwt  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise ModuleNotFoundError(f"tokens need the package pyjwt: {install_command('auth')}") from error
    return jwt
