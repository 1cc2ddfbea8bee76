// Calls, launches and parts that are not run natively: by Python, or refused (call/host.hpp).
#pragma once
#ifdef COILWORK_WITHOUT_PYTHON
#include "running/plain_calls.hpp"
#else
#include "running/python_calls.hpp"
#endif
