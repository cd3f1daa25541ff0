#!/usr/bin/env python3
"""Makes one C++ file of the C++ blocks of Markdown pages, so that a compiler checks them.

    extract_code.py ROOT OUTPUT PAGE...

A block between ```cpp and ``` becomes, by what it contains:

    int main(...)                       a program: a namespace of its own
    struct, class, a function           declarations: the same
    a function with `override` first    members of a class derived from Task and Callback
    anything else                       statements of a function, which gets the parameters of CONTEXT and may hide them

docs_context.h has what the blocks use without declaring it. #include lines go to the top of the file. A block after the
line <!-- not compiled: REASON --> is left out. The file ends with a table of the programs, by page and number in the
page.
"""

import pathlib
import re
import sys

from markdown_blocks import fenced_blocks, line_of

MEMBER = re.compile(r"\A(?:\s*//[^\n]*\n)*[^\n{};=]*\) (?:const )?override")
DECLARATIONS = re.compile(r"\A(?:\s*//[^\n]*\n)*(?:struct|class|template|namespace|TORCH_MODULE)\b")
FUNCTION = re.compile(r"\A(?:\s*//[^\n]*\n)*[A-Za-z_:<>]+[\w:<>,&* ]* \w+\([^;{]*\) \{")
CONTEXT = (
    "[[maybe_unused]] lockstep::Session& session, [[maybe_unused]] lockstep::World& world, "
    "[[maybe_unused]] lockstep::Trainer& trainer, [[maybe_unused]] docs::Net net, [[maybe_unused]] docs::Digits& task, "
    "[[maybe_unused]] lockstep::DataLoader& train, [[maybe_unused]] lockstep::DataLoader& validation, "
    "[[maybe_unused]] std::shared_ptr<const lockstep::Dataset> data"
)


def without_includes(code, includes):
    lines = []
    for line in code.split("\n"):
        if line.startswith("#include"):
            includes.add(line.split(">")[0] + ">")
            line = ""
        lines.append(line)
    return "\n".join(lines)


def wrap(code, number):
    bare = code.lstrip("\n")
    begin = f"namespace block_{number} {{\nusing namespace docs;\n"
    if "int main(" in code or DECLARATIONS.match(bare) or FUNCTION.match(bare):
        return f"{begin}#line LINE\n{code}}}\n"
    if MEMBER.match(bare):
        return f"{begin}struct Block : Members {{\n#line LINE\n{code}}};\n}}\n"
    return f"{begin}[[maybe_unused]] static void block({CONTEXT}) {{\n{{\n#line LINE\n{code}}}\n}}\n}}\n"


def main():
    root, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    includes, blocks, programs = set(), [], []
    for page in sys.argv[3:]:
        text = (root / page).read_text(encoding="utf-8")
        for index, block in enumerate(fenced_blocks(text, "cpp", "not compiled"), 1):
            if block["reason"]:
                continue
            code = without_includes(block["code"], includes)
            line = line_of(text, block.start("code"))
            blocks.append(wrap(code, len(blocks)).replace("#line LINE", f'#line {line} "{root / page}"'))
            name = f"block_{len(blocks) - 1}::main"
            if "int main()" in code:
                programs.append(f'    {{"{page}:{index}", [](int, char**) {{ return {name}(); }}}},')
            elif "int main(" in code:
                programs.append(f'    {{"{page}:{index}", {name}}},')
    header = '#include "docs_context.h"\n' + "".join(f"{line}\n" for line in sorted(includes))
    table = f'#line 1 "{output.name}: programs"\nconst std::map<std::string, int (*)(int, char**)> kPrograms{{\n'
    table += "\n".join(programs) + "\n};\n"
    output.write_text(f"// Made by extract_code.py.\n{header}\n" + "\n".join(blocks) + f"\n{table}", encoding="utf-8")


main()
