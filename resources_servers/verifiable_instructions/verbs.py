# ruff: noqa: SIM905 - lists of words are easier to read as text
"""Whether a word can be a verb, for answers that must start with one. A list and endings; no tagger, no model."""

from typing import Final

_VERBS: Final = frozenset(
    (
        "accept achieve act add address adjust admit adopt advance advise affect agree aim align allow alter "
        "analyze answer apply approach argue arise arrange arrive ask assemble assess assign assist assume attempt "
        "attend avoid bake balance be bear become begin behold believe bend blend boil borrow break bring brush "
        "build burn buy calculate call calm capture carry catch cause celebrate change charge check choose claim "
        "classify clean clear climb close collaborate collect combine come communicate compare complete compose "
        "compute conceive concentrate conduct configure confirm connect consider consist construct consult contain "
        "continue contribute convert convey cook copy could count cover craft create cross cultivate cut dance "
        "dare deal decide declare define deliver demonstrate depend derive describe design detail detect determine "
        "develop devise dig discover discuss display distribute dive divide do document draft draw dream drink "
        "drive drop eat edit embark embrace emphasize employ empower enable encourage end engage enhance enjoy "
        "ensure enter envision establish estimate evaluate examine execute exercise expand expect experience "
        "experiment explain explore express extend extract face fall feel fight fill find finish fit fix fly focus "
        "follow forge form foster gather gaze generate get give go grab grasp greet grow guide handle hear help "
        "hide highlight hold hope identify ignite illustrate imagine implement improve include incorporate "
        "increase indulge initiate input insert inspect install integrate introduce invent invest investigate "
        "invite involve join journey jump keep know launch lay lead learn leave let leverage lie listen live "
        "locate look love maintain make manage map mark master match maximize measure meet merge minimize mix "
        "model monitor move multiply navigate need note notice nurture observe obtain offer open operate optimize "
        "order organize outline overcome paint participate pay perform pick picture place plan play ponder prepare "
        "present preserve press prevent print prioritize produce program promote propose protect prove provide "
        "pull pursue push put question raise reach read realize recall receive recognize recommend reconsider "
        "record reduce refer refine reflect regard reject relax release remember remind remove render repeat "
        "replace report represent require research resolve respect respond rest restore return reveal review "
        "revise rewrite ride rise run save say search see seek select sell send separate serve set share shift "
        "should show sing sit sketch sleep solve speak specify spend split spread stand start state stay step stop "
        "store strengthen strive study submit suffer suggest summarize support suppose surrender take talk teach "
        "tell test think trace track train transform translate travel treat try turn understand unleash unlock "
        "unravel unveil update use utilize validate verify view visit visualize wait wake walk want watch wear "
        "welcome will win witness wonder work would write yield is are was were am has have had does did can may "
        "might must shall"
    ).split(" ")
)


def is_verb(word: str) -> bool:
    """Whether the word is a known verb, or ends as verbs do."""
    folded = word.lower()
    stem = folded.removesuffix("s").removesuffix("e")
    if folded in _VERBS or folded.removesuffix("s") in _VERBS or stem in _VERBS:
        return True
    return len(folded) > 4 and folded.endswith(("ing", "ed", "ize", "ise", "ify"))
