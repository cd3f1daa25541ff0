// The tables of docs/devices.md: what the texts of the parser's tests mean on two machines.

#include <gtest/gtest.h>

#include <lockstep/plan/plan.h>

#include "base/text.h"
#include "support/device_texts.h"
#include "support/fake_hardware.h"
#include "support/generated_part.h"

namespace lockstep {
namespace {

/// Blanks at its ends must be seen.
std::string shown(const std::string& text) {
  return text.empty() || text.find(' ') != std::string::npos ? "`\"" + text + "\"`" : "`" + text + "`";
}

/// The devices of the ranks, or why there is no plan.
std::string outcome(const std::string& text, const Hardware& machine) {
  try {
    const Plan plan = resolve({.devices = text}, machine, std::nullopt);
    if (!plan.gpu()) {
      return counted(static_cast<std::int64_t>(plan.local_devices.size()), "rank") + " on the CPU";
    }
    std::string names;
    for (const LocalDevice& device : plan.local_devices) {
      names += (names.empty() ? "" : ", ") + to_string(device.id);
    }
    return names;
  } catch (const ConfigError& error) {
    const std::string what = error.problems().at(0).what;
    return "refused: " + what.substr(what.find(": ") + 2);
  }
}

std::string tables() {
  Hardware gpus = machine_with(4);
  gpus.gpus[0].free_bytes = 30 * kGiB;
  gpus.gpus[1].free_bytes = 70 * kGiB;
  gpus.gpus[2].free_bytes = 10 * kGiB;
  gpus.gpus[3].free_bytes = 70 * kGiB;
  std::string text = "\n| `--devices` | four GPUs, of which 30, 70, 10 and 70 GiB are free | no GPU |\n|---|---|---|\n";
  for (const ValidDevices& row : kValidDevices) {
    text += "| " + shown(row.text) + " | " + outcome(row.text, gpus) + " | " + outcome(row.text, no_gpu()) + " |\n";
  }
  text +=
      "\n## What is refused\n\nOn every machine, before anything starts:\n\n| `--devices` | why | hint "
      "|\n|---|---|---|\n";
  for (const InvalidDevices& row : kInvalidDevices) {
    text += "| " + shown(row.text) + " | " + row.why + " | " + row.hint + " |\n";
  }
  return text;
}

TEST(DevicesDocs, MatchTheTestsOfTheParser) {
  expect_generated("docs/devices.md", "tests/support/device_texts.h", tables());
}

}  // namespace
}  // namespace lockstep
