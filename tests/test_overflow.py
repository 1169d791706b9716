"""How providers say that a request is too long."""

from __future__ import annotations

import pytest

from llm_compact.overflow import overflow_in

TOO_LONG = [
    # OpenAI
    (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in "
        "10000 tokens. Please reduce the length of the messages.",
        8192,
    ),
    ("Your input exceeds the context window of this model. Please adjust your input.", None),
    ("Error code: 400 - {'error': {'code': 'context_length_exceeded'}}", None),
    (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in "
        "509178 tokens. Please reduce the length of the messages.",
        272_000,
    ),
    # Anthropic
    ("prompt is too long: 213462 tokens > 200000 maximum", 200_000),
    (
        "input length and `max_tokens` exceed context limit: 198000 + 8192 > 200000, decrease "
        "input length or `max_tokens` and try again",
        200_000,
    ),
    # Gemini
    (
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        1_048_576,
    ),
    ("The input token count exceeds the maximum number of tokens allowed 32768.", 32_768),
    (
        "Unable to submit request because the input token count is 32825 but model only supports "
        "up to 32768. Reduce the input token count and try again.",
        32_768,
    ),
    # Mistral
    (
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum "
        "context length",
        32_768,
    ),
    # Ollama
    ("prompt too long; exceeded max context length by 4 tokens", None),
    ("the input length exceeds the context length", None),
    # llama.cpp server
    ("the request exceeds the available context size. try increasing the context size", None),
    ("request (8194 tokens) exceeds the available context size (4096 tokens)", 4_096),
    # llama-cpp-python
    ("Requested tokens (535) exceed context window of 512", 512),
    # vLLM
    (
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens "
        "(4000 in the messages, 1000 in the completion).",
        4_096,
    ),
    (
        "The decoder prompt (length 5951) is longer than the maximum model length of 4096. Make "
        "sure that `max_model_len` is no smaller than the number of text tokens.",
        4_096,
    ),
    ("Input length (265330) exceeds model's maximum context length (262144).", 262_144),
    # SGLang, Together
    (
        "Requested token count exceeds the model's maximum context length of 131072 tokens.",
        131_072,
    ),
    (
        "The input (516368 tokens) is longer than the model's context length (262144 tokens).",
        262_144,
    ),
    # LM Studio
    (
        "Trying to keep the first 5406 tokens when context the overflows. However, the model is "
        "loaded with context length of only 4096 tokens, which is not enough.",
        4_096,
    ),
    # OpenRouter
    (
        "This endpoint's maximum context length is 131,072 tokens. However, you requested about "
        "150000 tokens",
        131_072,
    ),
    # Groq
    ("Please reduce the length of the messages or completion.", None),
    # Bedrock
    ("An error occurred (ValidationException): Input is too long for requested model.", None),
    (
        "The model returned the following errors: prompt is too long: 208310 tokens > 200000 "
        "maximum",
        200_000,
    ),
    (
        "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the "
        "input to try again.",
        None,
    ),
    (
        "400 Bad Request: Too many input tokens. Max input tokens: 8192, request input token "
        "count: 9279",
        8_192,
    ),
    # xAI
    (
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        131_072,
    ),
    # GitHub Copilot
    ("prompt token count of 140000 exceeds the limit of 128000", 128_000),
]


@pytest.mark.parametrize("message, window", TOO_LONG)
def test_a_request_that_is_too_long(message: str, window: int | None) -> None:
    overflow = overflow_in(message)

    assert overflow is not None
    assert overflow.window == window


@pytest.mark.parametrize(
    "message",
    [
        "invalid auth token",
        "No key found - add one using 'llm keys set openai'",
        "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000.",
        "You exceeded your current quota, please check your plan and billing details.",
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
        "Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, "
        "Requested 40000. The input or output tokens must be reduced in order to run successfully.",
        "429: This request would exceed your organization's rate limit of 30,000 input tokens per "
        "minute. Please reduce the prompt length or try again later.",
        "413 Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested "
        "8000, please reduce your message size and try again.",
        "Quota exceeded for metric: generate_content_free_tier_input_token_count, limit: 250000",
        "Too many tokens, please wait before trying again.",
        "Connection error.",
        "The context of this error is unknown",
        "",
    ],
)
def test_something_else(message: str) -> None:
    assert overflow_in(message) is None
