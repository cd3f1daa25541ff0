// Included by c10d, nothing of it is used. See README.md.
#pragma once
