// The C++ blocks of the documents. DOCS_PROGRAM names the program to run: "README.md:1" is the first block of
// README.md.
#include "docs_code.h"

int main(int argc, char** argv) {
  const char* name = std::getenv("DOCS_PROGRAM");
  const auto program = kPrograms.find(name == nullptr ? "" : name);
  if (program != kPrograms.end()) {
    return program->second(argc, argv);
  }
  for (const auto& [known, main] : kPrograms) {
    std::printf("%s\n", known.c_str());
  }
  return 2;
}
