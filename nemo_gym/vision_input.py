"""Front door: a question about an image as the messages of a request."""

from typing import Any

from nemo_gym.rollouts.tasks import PromptConfig

__all__ = ["build_image_input"]


def build_image_input(prompt_config: PromptConfig, question: str, image: str | None) -> list[dict[str, Any]]:
    """The messages of a template whose ``{question}`` is filled in; with an image, the user's turn shows it.

    ``image`` is a data URI, or the base64 of a PNG.
    """
    messages: list[dict[str, Any]] = []
    if prompt_config.system is not None:
        messages.append({"role": "system", "content": prompt_config.system.format(question=question)})
    text = prompt_config.user.format(question=question)
    if not image:
        return [*messages, {"role": "user", "content": text}]
    url = image if image.startswith("data:") else f"data:image/png;base64,{image}"
    parts = [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": url, "detail": "high"}]
    return [*messages, {"role": "user", "content": parts}]
