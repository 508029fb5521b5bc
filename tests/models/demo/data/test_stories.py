import random

from models.demo.data.stories import Story, instruction, make_story, template_story, vary


def test_varied_stories_change_words_throughout() -> None:
    text = "Tom saw a dog. The dog saw Tom. Two dogs saw a ball."
    changed = [vary(random.Random(seed), text) for seed in range(40)]
    assert len(set(changed)) > 20
    assert any("dog" not in story and "Tom" not in story for story in changed)


def test_articles_follow_the_swapped_noun() -> None:
    for seed in range(200):
        story = vary(random.Random(seed), "There was a dog. An owl came.")
        for vowel in "aeiou":
            assert f" a {vowel}" not in story.lower()


def test_instructions_name_words_of_the_story() -> None:
    story = Story("Tom had a ball. The ball was red. Tom lost the ball near a river.")
    for seed in range(20):
        request = instruction(random.Random(seed), story)
        assert request.endswith((".", "?"))
        assert any(word in request for word in ("ball", "river", "Tom", "story.", "children."))


def test_templates_alone_make_stories() -> None:
    rng = random.Random(4)
    stories = [template_story(rng) for _ in range(50)]
    assert len(set(stories)) == 50
    assert not any("{" in story for story in stories)
    assert make_story(rng, [], []).answer
