#pragma once

// Set by CMake from the project's version.
#ifndef ESKER_VERSION
#error "ESKER_VERSION must be defined by the build"
#endif
