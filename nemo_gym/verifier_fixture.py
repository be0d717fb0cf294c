"""Front door: cases whose rewards are known, for tests of verifiers. See ``nemo_gym.testing.verifier_cases``."""

from nemo_gym.testing.verifier_cases import VerifierFixture, VerifierFixtureError, exercise_verifier_fixture

__all__ = ["VerifierFixture", "VerifierFixtureError", "exercise_verifier_fixture"]
