"""Weight updates pass through to scripted endpoints: real HTTP on both sides."""

import asyncio

import httpx

from responses_api_models.openai_model.tests.scripted_endpoint import error, reply, serving
from responses_api_models.vllm_model.tests.test_app import CHAT, SCORES, client, completion, model

TOKEN = "a-long-weights-token"
ALLOWED = {"Authorization": f"Bearer {TOKEN}"}
UPDATE = {"calls": [{"path": "/update_weights", "body": {"names": ["w"]}}, {"path": "/reset_prefix_cache"}]}
ROUTES = {CHAT: reply(completion()), "*": reply({})}


async def version_of_an_answer(session: httpx.AsyncClient) -> int:
    answer = await session.post("/v1/responses", json={"input": "hi"})
    version: int = answer.json()["output"][-1]["policy_version"]
    return version


async def test_every_endpoint_gets_every_call_and_the_version_goes_up() -> None:
    async with serving(routes=ROUTES) as one, serving(routes=ROUTES) as two:
        async with client(model(one.url, two.url, weights_token=TOKEN)) as session:
            assert await version_of_an_answer(session) == 0
            updated = await session.post("/weights", json=UPDATE, headers=ALLOWED)
            assert updated.json() == {"version": 1, "paused": False, "in_flight": 0}
            assert await version_of_an_answer(session) == 1
        for endpoint in (one, two):
            assert endpoint.sent_to("/update_weights") == [{"names": ["w"]}]
            assert endpoint.sent_to("/reset_prefix_cache") == [{}]


async def test_the_version_stands_beside_the_tokens() -> None:
    scored = completion(choice={"logprobs": SCORES})
    routes = {CHAT: reply(scored), "/tokenize": reply({"tokens": [1, 2]})}
    async with serving(routes=routes) as endpoint:
        server = model(endpoint.url, weights_token=TOKEN, return_token_id_information=True)
        async with client(server) as session:
            [item] = (await session.post("/v1/responses", json={"input": "hi"})).json()["output"]
    assert (item["generation_token_ids"], item["policy_version"]) == ([7, 8], 0)


async def test_only_the_token_opens_the_routes() -> None:
    async with serving(routes=ROUTES) as endpoint:
        async with client(model(endpoint.url, weights_token=TOKEN)) as session:
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                assert (await session.post("/weights", json=UPDATE, headers=headers)).status_code == 401
                assert (await session.post("/pause", headers=headers)).status_code == 401
                assert (await session.get("/weights", headers=headers)).status_code == 401
        async with client(model(endpoint.url)) as session:
            assert (await session.post("/weights", json=UPDATE, headers=ALLOWED)).status_code == 404
        assert not endpoint.paths


async def test_other_routes_of_an_endpoint_are_not_reached() -> None:
    async with serving(routes=ROUTES) as endpoint, client(model(endpoint.url, weights_token=TOKEN)) as session:
        answer = await session.post("/weights", json={"calls": [{"path": "/v1/files"}]}, headers=ALLOWED)
        assert answer.status_code == 422
        assert not endpoint.paths


async def test_an_update_that_fails_somewhere_leaves_the_model_paused() -> None:
    routes = {CHAT: reply(completion()), "/update_weights": [reply(error("no memory"), 500), reply({})], "*": reply({})}
    async with serving(routes=routes) as endpoint, client(model(endpoint.url, weights_token=TOKEN)) as session:
        failed = await session.post("/weights", json=UPDATE, headers=ALLOWED)
        assert failed.status_code == 502
        assert "no memory" in failed.text
        assert (await session.get("/weights", headers=ALLOWED)).json() == {"version": 0, "paused": True, "in_flight": 0}
        waiting = asyncio.create_task(version_of_an_answer(session))
        await session.post("/weights", json=UPDATE, headers=ALLOWED)
        assert (await session.post("/resume", headers=ALLOWED)).json()["version"] == 1
        assert await waiting == 1


async def test_requests_wait_while_paused_and_those_in_flight_finish() -> None:
    async with (
        serving(routes=ROUTES, delay_s=0.2) as endpoint,
        client(model(endpoint.url, weights_token=TOKEN)) as session,
    ):
        begun = asyncio.create_task(version_of_an_answer(session))
        while not endpoint.paths:  # noqa: ASYNC110 - what is waited for is the other side of a socket
            await asyncio.sleep(0.01)
        drained = await session.post("/pause", params={"drain": True}, headers=ALLOWED)
        assert drained.json() == {"version": 0, "paused": True, "in_flight": 0}
        waiting = asyncio.create_task(version_of_an_answer(session))
        updated = await session.post("/weights", json={**UPDATE, "version": 7}, headers=ALLOWED)
        assert updated.json() == {"version": 7, "paused": True, "in_flight": 0}
        assert endpoint.paths.count(CHAT) == 1
        await session.post("/resume", headers=ALLOWED)
        assert (await begun, await waiting) == (0, 7)


async def test_a_version_never_goes_back() -> None:
    async with serving(routes=ROUTES) as endpoint, client(model(endpoint.url, weights_token=TOKEN)) as session:
        await session.post("/weights", json={**UPDATE, "version": 3}, headers=ALLOWED)
        again = await session.post("/weights", json={**UPDATE, "version": 3}, headers=ALLOWED)
        assert again.status_code == 409
