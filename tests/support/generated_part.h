// The part of a document that a test knows.
#pragma once

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/base/file_system.h>
#include <lockstep/base/variables.h>

namespace lockstep {

/// Expects `text` after the line "<!-- generated from SOURCE -->" of the document. With LOCKSTEP_UPDATE_DOCS=1 it
/// writes the text there.
inline void expect_generated(const std::string& document, const std::string& source, const std::string& text) {
  const auto path = std::filesystem::path(LOCKSTEP_SOURCE_DIR) / document;
  const std::string marker = "<!-- generated from " + source + " -->\n";
  const std::string found = read_file(real_file_system(), path);
  const auto begin = found.find(marker);
  ASSERT_NE(begin, std::string::npos) << path << " has lost the line " << marker;
  const std::string introduction = found.substr(0, begin + marker.size());
  if (read_environment().get("LOCKSTEP_UPDATE_DOCS") == "1") {
    write_file(real_file_system(), path, introduction + text);
    std::filesystem::permissions(path, std::filesystem::perms(0644));
  } else {
    EXPECT_EQ(found.substr(introduction.size()), text)
        << "run the tests once with LOCKSTEP_UPDATE_DOCS=1 to write " << path;
  }
}

}  // namespace lockstep
