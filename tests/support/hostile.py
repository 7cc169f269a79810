"""Hypothesis strategies for strings that break scripts: for arguments, names and values of variables, and paths."""

from hypothesis import strategies as st

# Any string that an argument list can hold: no NUL; undecodable bytes come as lone surrogates, as from os.fsdecode.
HOSTILE = st.lists(
    st.one_of(
        st.sampled_from(
            [" ", "'",
             '"', "$", "`", ";", "&", "\n", "\t", "\\", "*", "?", "[", "]", "-", "--", "#", "%", "!", "~", "{",
             "}", "(", ")", "<", ">", "|", "$(id)", "${HOME}", "é", "漢", "\udcff", "\udc80", "\r", "=", ",", ":", "a"]
        ),
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
    ),
    max_size=12,
).map("".join)  # fmt: skip
NAME = st.from_regex(r"[A-Z][A-Za-z0-9_]{0,8}", fullmatch=True).map(lambda name: f"T_{name}")
# Most hostile strings cannot be mounted at all, so that others must come often enough, too.
ODD = st.text("aZ09_.+-/", max_size=9) | st.text("a é漢#%'&;()!~{}<>|=*?[]-\t", max_size=9)
PATH = (ODD | HOSTILE).map(lambda text: "/m" + text)
# One string with everything in it that any shell, scheduler or container may take for its own, and every runtime takes.
HARD = 'it\'s "quoted" $HOME $(id) `id` \\ # % ; & | < > ( ) { } [a] * ? ! ~ -- a=b, é 漢'
