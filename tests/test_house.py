"""What `tools/house.py` says of a repository, and what must be true of this one."""

from tools.house import REPOSITORY, House, table, trips


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_it_counts_and_finds_what_a_repository_has(tmp_path):
    eleven = ", ".join(f"a{k}" for k in range(9))
    write(
        tmp_path,
        {
            "src/stoker/__init__.py": '__all__ = ["Loader"]\n',
            "src/stoker/loader/loader.py": f"class Loader:\n    def __init__(self, {eleven}):\n        Part()\n",
            "src/stoker/loader/part.py": "class Part:\n    pass\n\n\ndef left():\n    return Part()\n",
            "src/stoker/sampling/part.py": "_X = 1\n_Y = 2\n\n\nclass Part:\n    def told(self):\n        return _X\n",
            "native/gather.cpp": "struct Batch {\n};\nstruct Later;\n",
            "native/tests/gather_test.cpp": "int main() {}\n",
            "tests/test_loader.py": "from stoker import Loader\n\nLoader().spec\n",
            "tests/test_part.py": "from stoker.loader.part import left\n\nleft()\n",
            "tests/laws/test_inside.py": "import stoker\n\nstoker.Loader()._opened\n",
            "docs/parts.md": "`told` says it.\n",
        },
    )
    house = House(tmp_path)
    assert house.public_names == ["Loader"]
    assert {room: sum(file.num_lines for file in files) for room, files in house.rooms.items()} == {
        "modules beside them": 1,
        "loader/": 9,
        "sampling/": 7,
        "native": 3,
        "native tests": 1,
        "tests/": 9,
    }
    assert [(file.classes, [name for name, _ in file.functions]) for file in house.source] == [
        ([], []),
        (["Loader"], ["Loader.__init__"]),
        (["Part"], ["left"]),
        (["Part"], ["Part.told"]),
    ]
    assert [file.classes for file in house.native] == [["Batch"], []]
    assert house.many_parameters == [(9, "src/stoker/loader/loader.py:2 Loader.__init__")]
    assert house.twice["classes"] == {"Part": ["src/stoker/loader/part.py", "src/stoker/sampling/part.py"]}
    assert not any(names for kind, names in house.twice.items() if kind != "classes")
    assert house.only_for_tests == ["src/stoker/loader/part.py:5 left", "src/stoker/sampling/part.py:2 _Y"]
    assert [str(file) for file in house.tests_by_public_names] == ["tests/test_loader.py"]
    assert house.long_functions == []


def test_a_table_has_numbers_to_the_right():
    assert table(("room", "lines"), [("order", 12345), ("a", 1.25)]) == (
        "room    lines\n-------------\norder  12,345\na         1.2\n"
    )


def test_a_trip_names_what_is_called_on_the_way():
    found = {name: (files, functions, calls) for name, files, functions, calls in trips()}
    assert len(found) == 9
    making, warm = found["making a loader, stacked, all cached"], found["a warm batch, stacked"]
    assert 1 < warm[0] < making[0] < making[1] < making[2]
    assert found["making a loader, stacked, nothing cached"] > making
    assert all(files <= 8 for name, (files, _, _) in found.items() if name.startswith("a warm batch"))


def test_nothing_in_this_repository_is_there_for_tests_alone_and_a_class_name_means_one_thing():
    house = House(REPOSITORY)
    assert house.only_for_tests == []
    assert not house.twice["classes"]
