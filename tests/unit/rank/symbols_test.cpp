#include "rank/symbols.h"

#include <string>

#include <gmock/gmock.h>

namespace lockstep {
namespace {

std::string readable(std::string_view mangled) {
  LineBuffer line;
  add_readable_name(line, mangled);
  return std::string(line.text());
}

std::string symbol_of(std::uintptr_t address) {
  LineBuffer line;
  add_symbol(line, address);
  return std::string(line.text());
}

TEST(Symbols, MakesNamesReadable) {
  const std::pair<const char*, const char*> cases[] = {
      {"main", "main"},
      {"_Z3fitv", "fit"},
      {"_ZN8lockstep7Trainer3fitERNS_4TaskE", "lockstep::Trainer::fit"},
      {"_ZNK8lockstep5World4rankEv", "lockstep::World::rank"},
      {"_ZN8lockstep12_GLOBAL__N_13runEv", "lockstep::(anonymous namespace)::run"},
      {"_ZN8lockstep7TrainerC1Ev", "lockstep::Trainer::Trainer"},
      {"_ZN8lockstep7TrainerD2Ev", "lockstep::Trainer::~Trainer"},
      {"_ZNSt6thread11_State_implINS_8_InvokerEE6_M_runEv", "std::thread::_State_impl<>"},
      {"_ZZN4main3runEvENKUlvE_clEv", "main::run"},
      {"_ZSt9terminatev", "std::terminate"},
      {"_ZN2at6native4add_ERNS_6TensorE", "at::native::add_"},
      {"_Z", "_Z"},
      {"_ZN", "_ZN"},
      {"_ZN99999999999999999999x", "_ZN99999999999999999999x"},
      {"_ZN50shortE", "shortE"},
      {"", ""},
  };
  for (const auto& [mangled, name] : cases) {
    EXPECT_EQ(readable(mangled), name);
  }
}

TEST(Symbols, FindsFunctionsOfProgramsAndLibraries) {
  EXPECT_THAT(symbol_of(reinterpret_cast<std::uintptr_t>(&add_symbol) + 1),
              testing::MatchesRegex("lockstep::add_symbol\\+0x1 \\(core_tests\\+0x[0-9a-f]+\\)"));
  EXPECT_THAT(symbol_of(16), "?? (0x10)");
}

TEST(LineBuffer, CutsWhatDoesNotFit) {
  LineBuffer line;
  line.add(-5).add(" ").add_hex(255).add(std::string(2000, 'x'));
  EXPECT_THAT(std::string(line.text()), testing::StartsWith("-5 0xffxxx"));
  EXPECT_EQ(line.text().size(), 511U);
}

}  // namespace
}  // namespace lockstep
