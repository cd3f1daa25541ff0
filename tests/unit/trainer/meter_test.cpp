#include "trainer/meter.h"

#include <utility>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "base/text.h"
#include "support/message_of.h"
#include "support/thread_world.h"

namespace lockstep {
namespace {

TEST(Meter, WeighsEachNameByTheOutputsThatHaveIt) {
  thread_world(2, [](World& world) {
    Meter meter;
    const auto of_rank = [&](double a, double b) { return at::full({}, world.is_main() ? a : b); };
    meter.add({of_rank(1, 4), {{world.is_main() ? "accuracy" : "recall", of_rank(2, 3)}}}, world.is_main() ? 1 : 2);
    meter.add({{}, {{"both", of_rank(1, 7)}}}, world.is_main() ? 1 : 2);
    EXPECT_EQ(meter.take(world), (Metrics{{"loss", 3}, {"accuracy", 2}, {"both", 5}, {"recall", 3}}));
    if (!world.is_main()) {
      meter.add({{}, {{"late", at::full({}, 6.0)}, {"recall", at::full({}, 1.0)}}}, 4);
    }
    EXPECT_EQ(meter.means(world), (Metrics{{"recall", 1}, {"late", 6}})) << "nothing counts for the others";
    const NamedTensors saved = meter.save(world);
    Meter resumed;
    resumed.load(saved, world);
    EXPECT_EQ(resumed.take(world), (Metrics{{"recall", 1}, {"late", 6}}));
  });
}

TEST(Meter, RefusesANameThatIsNotOneLine) {
  Meter meter;
  EXPECT_EQ(message_of([&] {
              meter.add({at::ones({}), {{"class\n1", at::ones({})}}}, 1);
            }),
            "found the metric name 'class1', expected one line of UTF-8 text | give each metric that a step returns or "
            "a callback logs a name in UTF-8, without line breaks");
  for (const char* name : {"", "caf\xe9"}) {
    EXPECT_THAT(message_of([&] {
                  meter.add({at::ones({}), {{name, at::ones({})}}}, 1);
                }),
                testing::HasSubstr(fmt::format("found the metric name '{}'", printable(name))));
  }
}

TEST(Meter, IsExactWhenARankHasNothing) {
  thread_world(3, [](World& world) {
    Meter meter;
    if (world.rank() != 1) {
      meter.add({at::full({}, world.rank() == 0 ? 1.0F : 4.0F), {}}, world.rank() == 0 ? 1 : 2);
    }
    const auto means = meter.take(world);
    ASSERT_EQ(means.size(), 1U);
    ASSERT_NEAR(means[0].second, 3.0, 1e-12);  // (1 x 1 + 4 x 2) / 3
  });
}

TEST(Meter, TakesOneElementOfAnyShape) {
  thread_world(1, [](World& world) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      Meter meter;
      meter.add({at::full({}, 1.0), {{"m", at::full({1}, 3.0, dtype)}}}, 2);
      EXPECT_DOUBLE_EQ(meter.take(world).at(1).second, 3.0);
    }
  });
}

TEST(Meter, CountsNothingThatIsLeftOut) {
  thread_world(2, [](World& world) {
    for (const bool counts : {false, true}) {
      StepOutput bad(at::full({}, std::nanf("")), {{"m", at::full({}, std::nanf(""))}});
      StepOutput good(at::full({}, 3.0F), {{"m", at::full({}, 1.0F)}});
      if (counts) {
        bad.count = good.count = at::full({}, 2, at::kLong);
      }
      Meter meter;
      meter.add(bad, 2, at::ones({}));
      EXPECT_TRUE(meter.means(world).empty());
      meter.add(good, 2, at::zeros({}));
      EXPECT_EQ(meter.take(world), (Metrics{{"loss", 3}, {"m", 1}}));
    }
  });
}

TEST(Meter, ContinuesWithSavedSumsOnAnyNumberOfRanks) {
  const auto output = [](double loss) { return StepOutput(at::full({}, loss, at::kDouble), {{"m", at::ones({})}}); };
  NamedTensors saved;
  thread_world(3, [&](World& world) {
    Meter meter;
    EXPECT_TRUE(meter.save(world).empty());
    if (world.rank() != 1) {
      meter.add(output(world.rank() == 0 ? 1.0 : 4.0), world.rank() == 0 ? 1 : 2);
    }
    NamedTensors sums = meter.save(world);
    if (world.is_main()) {
      saved = std::move(sums);
    }
  });
  for (const int ranks : {1, 2, 3, 4}) {
    thread_world(ranks, [&](World& world) {
      Meter meter;
      meter.load(saved, world);
      if (world.rank() == 0) {
        meter.add(output(6.0), 1);
      }
      const auto means = meter.take(world);
      ASSERT_EQ(means.size(), 2U);
      EXPECT_DOUBLE_EQ(means[0].second, 3.75) << ranks;  // (1 x 1 + 4 x 2 + 6 x 1) / 4

      Meter idle;  // no rank adds anything
      idle.load(saved, world);
      EXPECT_DOUBLE_EQ(idle.take(world).at(0).second, 3.0);

      Meter changed;  // the program has another metric now
      changed.load(saved, world);
      changed.add({at::full({}, 7.0), {{"other", at::ones({})}}}, 1);
      const double per_rank = world.size() * 7.0;
      EXPECT_EQ(changed.take(world), (Metrics{{"loss", (9 + per_rank) / (3 + world.size())}, {"m", 1}, {"other", 1}}));
    });
  }
}

}  // namespace
}  // namespace lockstep
