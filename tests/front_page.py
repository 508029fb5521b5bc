"""What proves each sentence of the front page: a test, a kept result, or a page that has one.

A sentence is found by how it begins, without its Markdown. A proof is one of

- `path/test_x.py::test_name`: a test, a path from `tests/`,
- `results/x.json`: a kept result, in `loadtest/`,
- `page.md#heading`: a part of another page,
- `file: text`: a file of the repository that has the text.
"""

from __future__ import annotations

LOOP = "router/test_loop.py::"
SERVED = "integration/served/"
LOCAL = "integration/local/"

PROOFS: dict[str, tuple[str, ...]] = {
    "Outrider serves open language models on Ray Serve": (
        f"{SERVED}test_served.py::test_answers_obey_their_schema",
        f"{SERVED}test_served.py::test_a_seed_gives_one_text_whatever_is_drafted",
        "models/checkpoint/test_architectures.py::test_greedy_text_is_that_of_transformers",
    ),
    "A small draft model proposes tokens": (f"{LOOP}test_text_does_not_depend_on_k_or_acceptance",),
    "The client receives exactly the text": (
        f"{LOCAL}test_lossless.py::test_served_text_is_that_of_generate",
        f"{LOCAL}test_rejection.py::test_texts_follow_the_law_of_the_target",
        "results/scenarios-demo.json",
    ),
    "JSON that is asked for by schema always parses": (
        "integration/api/test_shown_examples.py::"
        "test_the_request_by_curl_gives_json_by_its_schema_unless_max_tokens_cuts_it",
        "results/matrix.json",
    ),
    "It is for teams that run Ray or KubeRay": ("k8s/README.md#install",),
    "CPU measured": ("results/scenarios-demo.json", "results/kinds.json"),
    "GPU engines ran on one H100": (
        "results/gpu-h100.json",
        "loadtest/docs/gpu.md#on-one-h100",
        "models/gpu/kernels/test_kernels_compile.py::test_all_kernels_for_all_architectures",
        "deployments/config/test_config.py::test_what_cannot_be_is_refused_with_its_path",
        "deployments/docs/limits.md#limits-of-this-version",
    ),
    "Kubernetes manifests validated": (
        "k8s/test_manifests.py::test_the_service_is_what_kuberay_defines",
        "deployments/docs/limits.md#limits-of-this-version",
    ),
    "Draft and target are separate deployments": (
        "integration/cluster/test_placement.py::test_every_part_is_where_its_label_says",
    ),
    "Each is placed, scaled and restarted on its own": (
        "integration/cluster/test_placement.py::test_each_rank_has_a_gpu_of_its_own",
        f"{SERVED}test_faults.py::"
        "test_every_request_completes_with_its_text_and_everything_is_free_afterwards",
        f"{SERVED}test_served.py::test_the_draft_may_die_under_running_streams",
        "results/faults.json",
    ),
    "One whose router dies can go on at another.": (
        "integration/api/test_resuming.py::test_a_stream_goes_on_elsewhere_as_if_nothing_had_been",
    ),
    "A seed gives one text": (
        f"{SERVED}test_served.py::test_a_seed_gives_one_text_whatever_is_drafted",
    ),
    "It is the same bit for bit": (
        f"{LOCAL}test_seeded.py::test_a_seed_gives_one_text",
        "models/README.md#why-the-text-cannot-change",
    ),
    "The default rule, coupled": (
        "models/engine/test_distribution.py::test_as_many_are_accepted_as_each_rule_says",
        "results/acceptance.json",
    ),
    "The router chooses k live": (
        "router/planning/test_router_planner.py::"
        "test_what_stopped_paying_is_found_and_what_begins_to_pay_again",
    ),
    "A request may fix k": (
        f"{SERVED}test_served.py::test_a_seed_gives_one_text_whatever_is_drafted",
        f"{LOOP}test_plain_decoding_lets_the_target_go_on_alone",
    ),
    "On a device of its own": (
        "integration/local/drafting/test_ahead.py::test_drafts_ahead_change_no_text",
        "results/ahead-simulated.json",
    ),
    "Grammars (JSON schema": (
        f"{SERVED}test_served.py::test_grammars_with_rules_and_texts_against_them",
        "deployments/constraint/test_constraint_child.py::"
        "test_a_grammar_that_needs_too_much_memory_ends_the_child",
    ),
    "Required tool calls, in the model's own format": (
        "integration/api/test_tools.py::test_every_format_calls_over_http",
        "integration/api/test_tools.py::test_two_hundred_calls_of_drawn_tools_validate",
    ),
    "Rewards steer what no grammar says": (
        f"{SERVED}test_served.py::test_a_reward_steers_a_text",
        "deployments/docs/look-ahead.md#steer-a-text-by-a-reward",
    ),
    "OpenAI's clients for Python and JavaScript": ("results/clients.json",),
    "Draft models are compared exactly": (
        f"{LOCAL}drafting/test_named_drafts.py::"
        "test_what_a_draft_would_have_drafted_is_what_it_drafts",
        f"{LOCAL}drafting/test_draft_swap.py::test_a_swap_under_16_streams_changes_no_text",
    ),
    "One command trains": (
        "models/distill/test_command.py::test_each_kind_trains_goes_on_and_is_read",
    ),
    "Suffix decoding continues": (
        f"{LOCAL}drafting/test_drafters.py::test_repeated_text_goes_on_behind_the_draft_models",
        f"{LOCAL}drafting/test_drafters.py::test_a_draft_that_dies_mid_stream",
    ),
    "Text that a grammar forces": (
        f"{LOCAL}drafting/test_forced.py::test_without_a_draft_model_forced_text_saves_most_passes",
        "results/forced.json",
    ),
    "MTP, EAGLE-3 and Medusa heads": (
        "models/engine/drafting/test_own_drafts.py::test_the_text_is_that_without_heads",
        "models/engine/drafting/test_tree_drafts.py::"
        "test_side_paths_are_accepted_and_the_text_is_the_same",
    ),
    "Python 3.11 to 3.13 on Linux": (
        'pyproject.toml: requires-python = ">=3.11,<3.14"',
        "tests/conftest.py: HF_HUB_OFFLINE",
    ),
    "The first command serves": (
        f"{SERVED}test_served.py::test_ready_prints_where_and_how",
        f"{SERVED}test_serve_stop.py::test_ctrl_c_ends_it_cleanly",
        "models/demo/README.md#a-head-for-smollm2",
    ),
    "The second runs the tests": ("tests/README.md#tests",),
    "Those that need a GPU": ("tests/README.md#what-is-skipped",),
    "constraints.txt has": ("test_constraints.py::test_each_pin_is_one_public_version",),
    "If it is left out, pip keeps": (
        "test_constraints.py::test_a_plain_installation_gets_the_pinned_torch",
    ),
    "http://127.0.0.1:8000/ is a playground": (
        "deployments/api/playground/test_in_browser.py::"
        "test_a_race_is_of_one_text_and_can_be_replayed",
        "deployments/api/playground/test_in_browser.py::"
        "test_hovering_a_token_shows_its_probability_and_k",
        f"{SERVED}test_playground.py::test_a_prompt_is_answered_on_it",
    ),
    "loadtest has more": (
        "loadtest/report/readme/test_figures.py::test_an_aim_that_was_missed_is_called_so",
    ),
    "python -m loadtest study measures": (
        "loadtest/frame/test_command.py::"
        "test_a_study_asks_a_users_prompts_at_each_temperature_of_each_draft",
    ),
    "A figure names what the code got": (
        "loadtest/report/readme/test_since.py::test_a_result_names_what_came_after_it",
    ),
    "A real model": ("results/kinds.json",),
    "No pair of two real models": ("deployments/docs/limits.md#limits-of-this-version",),
    "Images, pipeline stages": ("deployments/docs/moving-from-vllm.md#what-differs-most",),
    "See all limits": (".github/CONTRIBUTING.md#check-a-change",),
    "Apache-2.0": ("LICENSE: Apache License",),
    "The shipped models' data": ("models/demo/README.md#a-head-for-smollm2",),
}
