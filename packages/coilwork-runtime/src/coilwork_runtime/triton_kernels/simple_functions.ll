; Functions of NVIDIA's libdevice that are one instruction, by the names under which Triton calls them. Reading libdevice
; itself takes a fifth of a small kernel's compilation; kernels that need more of it than this get all of it.
;
; The branches are those that a kernel has of libdevice's functions, so that its machine code is the same. Which one is taken
; is known when it is compiled: Triton flushes denormals to zero, and asks for no precise root.

target triple = "nvptx64-nvidia-cuda"

@.str = private unnamed_addr constant [11 x i8] c"__CUDA_FTZ\00", align 1
@.str.2 = private unnamed_addr constant [17 x i8] c"__CUDA_PREC_SQRT\00", align 1

declare i32 @__nvvm_reflect(ptr)

declare float @llvm.nvvm.rsqrt.approx.ftz.f(float)
declare float @llvm.nvvm.rsqrt.approx.f(float)
declare float @llvm.nvvm.ex2.approx.ftz.f(float)
declare float @llvm.nvvm.ex2.approx.f(float)
declare float @llvm.nvvm.sqrt.rn.ftz.f(float)
declare float @llvm.nvvm.sqrt.approx.ftz.f(float)
declare float @llvm.nvvm.sqrt.rn.f(float)
declare float @llvm.nvvm.sqrt.approx.f(float)

define float @__nv_rsqrtf(float %x) alwaysinline nounwind {
entry:
  %ftz = call i32 @__nvvm_reflect(ptr @.str)
  %flush = icmp ne i32 %ftz, 0
  br i1 %flush, label %flushed, label %kept

flushed:
  %a = call float @llvm.nvvm.rsqrt.approx.ftz.f(float %x)
  br label %end

kept:
  %b = call float @llvm.nvvm.rsqrt.approx.f(float %x)
  br label %end

end:
  %y = phi float [ %a, %flushed ], [ %b, %kept ]
  ret float %y
}

define float @__nv_exp2f(float %x) alwaysinline nounwind {
entry:
  %ftz = call i32 @__nvvm_reflect(ptr @.str)
  %flush = icmp ne i32 %ftz, 0
  br i1 %flush, label %flushed, label %kept

flushed:
  %a = call float @llvm.nvvm.ex2.approx.ftz.f(float %x)
  br label %end

kept:
  %b = call float @llvm.nvvm.ex2.approx.f(float %x)
  br label %end

end:
  %y = phi float [ %a, %flushed ], [ %b, %kept ]
  ret float %y
}

define float @__nv_sqrtf(float %x) alwaysinline nounwind {
entry:
  %ftz = call i32 @__nvvm_reflect(ptr @.str)
  %flush = icmp ne i32 %ftz, 0
  br i1 %flush, label %flushed, label %kept

flushed:
  %how = call i32 @__nvvm_reflect(ptr @.str.2)
  %precise = icmp ne i32 %how, 0
  br i1 %precise, label %flushed_precise, label %flushed_approximate

flushed_precise:
  %a = call float @llvm.nvvm.sqrt.rn.ftz.f(float %x)
  br label %end

flushed_approximate:
  %b = call float @llvm.nvvm.sqrt.approx.ftz.f(float %x)
  br label %end

kept:
  %how.kept = call i32 @__nvvm_reflect(ptr @.str.2)
  %precise.kept = icmp ne i32 %how.kept, 0
  br i1 %precise.kept, label %kept_precise, label %kept_approximate

kept_precise:
  %c = call float @llvm.nvvm.sqrt.rn.f(float %x)
  br label %end

kept_approximate:
  %d = call float @llvm.nvvm.sqrt.approx.f(float %x)
  br label %end

end:
  %y = phi float [ %a, %flushed_precise ], [ %b, %flushed_approximate ], [ %c, %kept_precise ], [ %d, %kept_approximate ]
  ret float %y
}
