# Defines the target coilwork::model: the header coilwork/model.h, and the library of the wheel, or one that is built here from the
# sources of coilwork-aot and coilwork-runtime. Without a wheel beside it, coilwork_RUNTIME is the folder of the package coilwork_runtime.
if(TARGET coilwork::model)
  return()
endif()
get_filename_component(_coilwork_root "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
set(_coilwork_library "${_coilwork_root}/lib/libcoilwork_model.so")

if(EXISTS "${_coilwork_library}" AND NOT coilwork_BUILD)
  add_library(coilwork::model SHARED IMPORTED)
  set_target_properties(coilwork::model PROPERTIES
    IMPORTED_LOCATION "${_coilwork_library}"
    IMPORTED_NO_SONAME ON
    INTERFACE_INCLUDE_DIRECTORIES "${_coilwork_root}/include"
    INTERFACE_COMPILE_FEATURES cxx_std_17)
else()
  set(coilwork_RUNTIME "${_coilwork_root}/../../coilwork_runtime" CACHE PATH "the folder of the Python package coilwork_runtime")
  set(_coilwork_native "${coilwork_RUNTIME}/executor/native")
  file(GLOB _coilwork_sources "${_coilwork_root}/library/*.cpp" "${_coilwork_native}/*/*.cpp")
  if(NOT EXISTS "${_coilwork_native}")
    set(coilwork_FOUND FALSE)
    set(coilwork_NOT_FOUND_MESSAGE "there is no library, and no coilwork_runtime to build it of: set coilwork_RUNTIME")
    return()
  endif()
  file(STRINGS "${coilwork_RUNTIME}/version.py" _coilwork_version REGEX "__version__")
  string(REGEX MATCH "[0-9]+[.][0-9]+[.][0-9]+" _coilwork_version "${_coilwork_version}")
  add_library(coilwork_model SHARED ${_coilwork_sources})
  add_library(coilwork::model ALIAS coilwork_model)
  target_compile_features(coilwork_model PUBLIC cxx_std_17)
  target_compile_definitions(coilwork_model PRIVATE COILWORK_WITHOUT_PYTHON "COILWORK_RUNTIME_VERSION=\"${_coilwork_version}\"")
  target_include_directories(coilwork_model
    PUBLIC "${_coilwork_root}/include"
    PRIVATE "${_coilwork_root}/library" "${_coilwork_native}")
  set_target_properties(coilwork_model PROPERTIES CXX_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
  find_package(Threads REQUIRED)
  target_link_libraries(coilwork_model PRIVATE Threads::Threads ${CMAKE_DL_LIBS} "-Wl,--version-script=${_coilwork_root}/library/exports.map")
endif()
set(coilwork_FOUND TRUE)
