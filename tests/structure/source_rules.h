// The rules that a reader of the sources may rely on, as functions of one file. Each returns what is wrong with it.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::structure {

struct SourceFile {
  std::string path;  ///< from the repository's root
  std::string text;
};

using Findings = std::vector<std::string>;

/// The text with comments blanked, and on request the contents of string and character literals as well. Lines stay
/// lines.
std::string without_comments(std::string_view text, bool keep_literals);

/// Includes point only downward, name an existing module, and are spelled <lockstep/module/x.h> or "module/x.h".
Findings check_include_direction(const SourceFile& file);

/// Nothing of LibTorch below the torch line; <torch/torch.h> nowhere; costly headers only in the file that is their
/// home.
Findings check_third_party_includes(const SourceFile& file);

/// What touches the whole process (environment, standard output, exit, wall clock) stands only in the file whose job it
/// is.
Findings check_process_wide_names(const SourceFile& file);

/// A public header begins with a comment that says what it is for, then #pragma once. Its namespace is visible.
Findings check_public_header(const SourceFile& file);

/// `lists`: the texts of the CMakeLists.txt files that may name it.
Findings check_listed(const SourceFile& file, const std::vector<std::string>& lists);

/// A row of the table "Forbidden synonyms" of docs/glossary.md, for one of its phrases.
struct ForbiddenSynonym {
  std::string phrase;                     ///< lower case
  std::string write;                      ///< the right term
  std::vector<std::string> exceptions{};  ///< files that may use the phrase
};

struct Glossary {
  std::vector<std::string> terms{};  ///< in the order of the table, without backticks
  std::vector<ForbiddenSynonym> synonyms{};
};

Glossary parse_glossary(std::string_view text);

/// No forbidden synonym as a whole word, in upper or lower case.
Findings check_synonyms(const SourceFile& file, const std::vector<ForbiddenSynonym>& synonyms);

/// Every class, struct and enum that a public header defines is a term of the glossary.
Findings check_types_have_terms(const SourceFile& header, const std::vector<std::string>& terms);

/// Paths of the repository between backticks ("src/base/text.h"). `exists` is asked for paths from its root.
Findings check_paths(const SourceFile& document, const std::function<bool(const std::string&)>& exists);

/// A file that uses streams, events, page-locked memory, CUDA devices, NCCL or NVML is named between backticks in
/// `table`.
Findings check_gpu_code_is_listed(const SourceFile& file, std::string_view table);

/// The names of the settings in the field table, src/config/fields.h: "batch_size", "optim.lr".
std::set<std::string> parse_field_names(std::string_view fields);

/// The names in src/config/foreign_names.cpp: the first literals of each row.
std::set<std::string> parse_foreign_names(std::string_view table);

/// Each name, without its section, stands in code of the document as a word of its own: in any case, with - or _, and
/// with or without "--".
Findings check_names_are_named(const SourceFile& document, const std::set<std::string>& names);

using Fields = std::vector<std::string>;  ///< of a struct, in their order

/// Those of each struct that the header defines.
std::vector<Fields> parse_fields(const SourceFile& header);

/// Lists of several fields in code within a line, such as "{.init = 2, .steps = 3}": the compiler takes them only in
/// the order of a struct.
Findings check_initializers(const SourceFile& document, const std::vector<Fields>& structs);

/// Settings that the document names as flags or in code, and that do not exist: "--optim.lr", "`optim.lr`", and in the
/// column "here" of a table and after "./train" also flags without a section. `others`: flags that are no settings.
Findings check_settings(const SourceFile& document, const std::set<std::string>& fields,
                        const std::set<std::string>& others);

/// The string literals of C++ code, one per line; adjacent ones are joined.
std::string string_literals(std::string_view code);

/// Code in the first cells of the tables whose first column is "what you see" is a text of the program, which has
/// `literals`; "..." stands for what differs. The texts of at least six characters between them must occur.
Findings check_quotes(const SourceFile& document, std::string_view literals);

/// As check_quotes, for the tables whose first column is "message". Words of capital letters stand for what differs
/// too, and punctuation at the ends of texts does not count. `literals`: of the program and of its tests, because a
/// test has texts that the program puts together. Of a text that none of them has, the parts must occur: those beside
/// "; " and ": ", and the one behind "cannot ".
Findings check_messages(const SourceFile& document, std::string_view literals);

/// The first block "diff" of the page has lines of both files, and with it the code of `before` becomes that of
/// `after`. Comments may differ.
Findings check_first_diff(const SourceFile& page, const SourceFile& before, const SourceFile& after);

/// The tests that a .cpp file or a CMakeLists.txt defines: "Suite.Name", or the name that add_test gives.
std::set<std::string> parse_test_names(const SourceFile& file);

/// Code in the column "test" of a table is one of `tests`, and each row of such a table names one.
Findings check_tests(const SourceFile& document, const std::set<std::string>& tests);

/// `list` has a table "what you see | test" with the first cell of each row of the tables of `page` whose first column
/// is "what you see", and with the tests that provoke it or "no test: REASON". Each test is one of `tests`, by name
/// with the texts of its file. One of these files has the longest text of each message that the row quotes.
Findings check_symptoms(const SourceFile& page, const SourceFile& list,
                        const std::map<std::string, std::string_view>& tests);

/// Links of a Markdown file to other files. `exists` is asked for paths from the repository's root.
Findings check_links(const SourceFile& document, const std::function<bool(const std::string&)>& exists);

}  // namespace lockstep::structure
