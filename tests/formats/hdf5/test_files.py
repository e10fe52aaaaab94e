from __future__ import annotations

from counterpoint.formats.hdf5.files import HORIZONS, INSTRUCTIONS, instruction_from_name, instruction_of
from studies.fewshot.libero import LIBERO_10, PREMIER_TACO_TASKS


def test_table_6_of_premier_taco() -> None:
    told = [(task.scene.replace("_", " "), task.text.upper()) for task in PREMIER_TACO_TASKS]
    assert told == [
        ("LIVING ROOM SCENE2", "PUT BOTH THE ALPHABET SOUP AND THE TOMATO SAUCE IN THE BASKET"),
        ("LIVING ROOM SCENE2", "PUT BOTH THE CREAM CHEESE BOX AND THE BUTTER IN THE BASKET"),
        ("KITCHEN SCENE3", "TURN ON THE STOVE AND PUT THE MOKA POT ON IT"),
        ("KITCHEN SCENE4", "PUT THE BLACK BOWL IN THE BOTTOM DRAWER OF THE CABINET AND CLOSE IT"),
        (
            "LIVING ROOM SCENE5",
            "PUT THE WHITE MUG ON THE LEFT PLATE AND PUT THE YELLOW AND WHITE MUG ON THE RIGHT PLATE",
        ),
        ("STUDY SCENE1", "PICK UP THE BOOK AND PLACE IT IN THE BACK COMPARTMENT OF THE CADDY"),
        (
            "LIVING ROOM SCENE6",
            "PUT THE WHITE MUG ON THE PLATE AND PUT THE CHOCOLATE PUDDING TO THE RIGHT OF THE PLATE",
        ),
        ("LIVING ROOM SCENE1", "PUT BOTH THE ALPHABET SOUP AND THE CREAM CHEESE BOX IN THE BASKET"),
    ]
    assert len(LIBERO_10) == 10


def test_names_and_words_lead_to_each_other() -> None:
    for task in LIBERO_10:
        for name in (task.name, f"{task.name}.bddl", f"libero_10/{task.name}_demo.hdf5"):
            assert instruction_from_name(name) == task.text
    assert instruction_from_name("KITCHEN_SCENE10_close_the_top_drawer_demo.hdf5") == "close the top drawer"
    assert instruction_from_name("put_the_bowl_on_the_plate") == "put the bowl on the plate"


def test_words_for_robosuite() -> None:
    assert INSTRUCTIONS.keys() == HORIZONS.keys()
    assert instruction_of("Lift") == "lift the cube"
    assert instruction_of("Stack_D0") == "stack"
    assert instruction_of("ThreePieceAssembly_D2") == "three piece assembly"
    assert instruction_of("Square") == "square"
