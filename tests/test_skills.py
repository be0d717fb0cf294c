from pathlib import Path

import pytest

from nemo_gym.skills import hash_skill_dir, load_skill_directory, stage_skills


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    for name, text in {"b": "name: bee\n", "a": "name: ay\ndescription: First\nmetadata:\n  version: 2.1\n"}.items():
        (tmp_path / "skills" / name).mkdir(parents=True)
        (tmp_path / "skills" / name / "SKILL.md").write_text(f"---\n{text}---\nDo it.\n")
    return tmp_path / "skills"


def test_a_folder_of_skills_is_described_in_the_order_of_its_folders(skills: Path) -> None:
    ref = load_skill_directory(str(skills))
    assert [(s.name, s.description, s.version) for s in ref.skills] == [("ay", "First", "2.1"), ("bee", None, None)]
    assert ref.path == str(skills)
    assert len(ref.hash) == 12


def test_the_hash_changes_with_any_file(skills: Path) -> None:
    before = hash_skill_dir(skills)
    (skills / "a" / "script.py").write_text("")
    assert hash_skill_dir(skills) != before


def test_skills_are_staged_where_an_agent_looks(skills: Path, tmp_path: Path) -> None:
    stage_skills(skills, tmp_path / "agent" / "skills")
    assert (tmp_path / "agent" / "skills" / "a" / "SKILL.md").is_file()


@pytest.mark.parametrize(
    "text", ["", "no front matter", "---\nname: x\n", "---\n- a\n---\n", "---\nx: 1\n---\n", "---\n: [\n---\n"]
)
def test_a_skill_without_a_proper_head_is_refused(skills: Path, text: str) -> None:
    (skills / "a" / "SKILL.md").write_text(text)
    with pytest.raises(ValueError, match=r"SKILL\.md"):
        load_skill_directory(skills)


def test_what_is_no_folder_of_skills_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ValueError, match="skill"):
            load_skill_directory(path)
    (tmp_path / "empty_skill").mkdir()
    with pytest.raises(ValueError, match=r"SKILL\.md"):
        load_skill_directory(tmp_path)
