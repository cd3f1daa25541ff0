// The part of image_folder() that a build without the image libraries has.
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/data/image_folder.h>

#include "support/message_of.h"

namespace lockstep {
namespace {

TEST(ImageFolderWithoutLibraries, NamesThePackagesToInstall) {
  EXPECT_EQ(message_of<ConfigError>([] { image_folder("/images"); }),
            "image_folder: this build of lockstep cannot decode images | install libspng and TurboJPEG (Debian: "
            "libspng-dev libturbojpeg0-dev), then configure and build lockstep again");
}

}  // namespace
}  // namespace lockstep
