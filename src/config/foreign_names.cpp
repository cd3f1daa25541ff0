#include "config/foreign_names.h"

#include "base/text.h"
#include "config/command_tokens.h"

namespace lockstep {
namespace {

constexpr std::string_view kSeveralMachines =
    "several machines: lockstep run --nnodes N --node-rank R --master-addr HOST -- PROGRAM, or another launcher";

// perceptrain, OneTrainer, PyTorch's tutorial, Lightning, SLEAP-NN, torchrun, accelerate, the Hugging Face Trainer,
// DeepSpeed.
constexpr ForeignName kRows[] = {
    // earlier versions of lockstep
    {"memory.keep", "use --memory.keep_freed, its new name", "memory.keep_freed"},
    // devices and ranks
    {"gpus num_gpus n_gpus ngpus n_gpu gpu_count num_devices n_devices trainer_devices",
     "use --devices N; a list such as 0,2 names GPUs, -1 means all"},
    {"device gpu gpu_id gpu_ids device_id device_ids trainer_device_indices cuda_device",
     "use --devices with a list: 0, for GPU 0, or 0,2"},
    {"accelerator trainer_accelerator device_type", "use --compute_setup auto, cpu or gpu"},
    {"use_gpu use_cuda cuda", "use --compute_setup gpu"},
    {"use_cpu no_cuda no_gpu cpu cpu_only", "use --compute_setup cpu"},
    {"world_size num_processes num_procs nproc n_procs np", "use --nprocs N: ranks in total over all nodes", "nprocs"},
    {"nproc_per_node nprocs_per_node gpus_per_node devices_per_node num_gpus_per_node",
     "use --nprocs N, which counts the ranks of all nodes, or: lockstep run --nproc-per-node N -- PROGRAM"},
    {"nnodes num_nodes num_machines", kSeveralMachines},
    {"node_rank machine_rank master_addr master_port main_process_ip main_process_port", kSeveralMachines},
    {"rdzv_endpoint rdzv_backend rdzv_id rdzv_conf local_addr", kSeveralMachines},
    {"port", "remove it: on one machine any free port is used; several machines take it from their launcher"},
    {"start_method role run_path no_python main_training_function",
     "remove it: the program starts itself once per rank, without Python"},
    {"monitor_interval", "remove it: a failed rank is noticed at once"},
    {"redirects tee local_ranks_filter logs_specs", "use --report.log_dir DIR, or the flags of lockstep run"},
    {"numa_binding enable_cpu_affinity", "use lockstep run --numa-binding node -- PROGRAM"},
    {"num_cpu_threads_per_process", "set OMP_NUM_THREADS"},
    {"same_network", "remove it: the launcher says which machines there are"},
    {"standalone spawn use_torchrun multi_gpu enable_multi_gpu", "remove it: the program starts its own ranks"},
    {"local_rank", "remove it: the launcher sets LOCAL_RANK"},
    {"distributed_backend dist_backend ddp_backend process_group_backend", "use --backend auto, nccl or gloo",
     "backend"},
    {"strategy trainer_strategy distributed_strategy", "remove it: gradients are always averaged over all ranks"},
    {"distributed_data_loading use_distributed_sampler data_strategy",
     "remove it: each rank always gets its own part of the data"},
    // length
    {"epochs num_epochs n_epochs total_epochs num_train_epochs epoch", "use --max_epochs N", "max_epochs"},
    {"max_iter max_iters", "use --max_epochs N, or --max_steps N for optimizer steps"},
    {"steps num_steps n_steps total_steps max_train_steps num_train_steps iters train_iters iterations",
     "use --max_steps N", "max_steps"},
    {"max_time time_limit", "use --max_time_s SECONDS"},
    {"limit_test_batches limit_predict_batches", "use lockstep::take(data, N)"},
    {"limit_train_batches train_steps_per_epoch min_train_steps_per_epoch", "use --data.steps_per_epoch N"},
    // batches and data
    {"per_device_train_batch_size per_gpu_train_batch_size micro_batch_size train_micro_batch_size_per_gpu",
     "use --batch_size N: samples per rank and micro-batch", "batch_size"},
    {"device_batch_size bs", "use --batch_size N: samples per rank and micro-batch", "batch_size"},
    {"train_batch_size total_batch_size effective_batch_size",
     "use --global_batch_size N: samples per step over all ranks", "global_batch_size"},
    {"val_batch_size eval_batch_size per_device_eval_batch_size",
     "use --batch_size N, which also applies to validation"},
    {"accumulate_grad_batches gradient_accumulation_steps gradient_accumulation grad_accum grad_accum_steps",
     "use --accumulation N, or --global_batch_size N, from which it is derived", "accumulation"},
    {"num_workers n_workers dataloader_num_workers dataloader_threads", "use --data.workers N", "data.workers"},
    {"prefetch_factor dataloader_prefetch_factor", "use --data.prefetch N"},
    {"train_data_loader val_data_loader", "use --batch_size N, --data.workers N and --sampler.shuffle"},
    {"validation_fraction", "split the data in the program: lockstep::split_dataset"},
    {"use_same_data_for_val", "give the validation the same data in the program"},
    {"dataloader_pin_memory", "use --data.pin_memory", "data.pin_memory"},
    {"dataloader_drop_last", "use --sampler.drop_last", "sampler.drop_last"},
    {"random_seed manual_seed", "use --seed N", "seed"},
    // optimizer
    {"learning_rate base_lr initial_lr", "use --optim.lr X", "optim.lr"},
    {"lr_scheduler lr_scheduler_type scheduler learning_rate_scheduler lr_schedule",
     "use --optim.schedule, for example warmup:500+cosine"},
    {"warmup warmup_steps num_warmup_steps lr_warmup_steps warmup_iters learning_rate_warmup_steps warmup_ratio",
     "use --optim.schedule warmup:500+cosine; a length is 500 steps, 2ep or 5%"},
    {"min_lr lr_min eta_min min_lr_ratio", "use --optim.schedule cosine:to=0.1: a fraction of the learning rate"},
    {"decay_steps lr_decay_steps lr_decay_iters t_max", "use --optim.schedule cosine:until=10000 or cosine:for=10000"},
    {"learning_rate_cycles num_cycles", "use --optim.schedule restarts:cycles=N"},
    {"gradient_clip_val gradient_clipping grad_clip clip_grad clip_grad_norm max_norm", "use --optim.max_grad_norm X",
     "optim.max_grad_norm"},
    {"optimizer optimizer_name weight_decay momentum betas",
     "the program creates its optimizer; --optim.lr changes the learning rate"},
    {"early_stopping early_stopping_patience early_stop patience es_patience stop_training_on_plateau",
     "use --early_stop.metric val_loss with --early_stop.patience N"},
    {"reduce_lr_on_plateau plateau_patience", "use --plateau.metric val_loss with --plateau.patience N"},
    {"loss_scaler loss_scaling", "use --optim.loss_scaling linear or sqrt with --optim.lr_batch_size N"},
    {"channels_last use_channels_last", "use --memory.channels_last"},
    {"lr_scaling scale_learning_rate learning_rate_scaler scale_lr",
     "use --optim.lr_scaling linear or sqrt with --optim.lr_batch_size N"},
    {"gradient_clip_value clip_value clip_grad_value", "use --optim.max_grad_value X", "optim.max_grad_value"},
    {"gradient_clip_algorithm", "use --optim.max_grad_norm X, or --optim.max_grad_value X"},
    {"cudnn_benchmark", "use --benchmark", "benchmark"},
    {"allow_tf32 tf32 float32_matmul_precision set_float32_matmul_precision", "use --matmul_precision high"},
    {"use_deterministic_algorithms", "use --deterministic on"},
    {"anomaly_detection detect_anomalies", "use --detect_anomaly", "detect_anomaly"},
    {"mixed_precision dtype train_dtype amp use_amp bf16 fp16", "use --precision fp32, bf16_mixed or fp16_mixed"},
    // validation, checkpoints, reports
    {"val_every check_val_every_n_epoch eval_epochs eval_strategy", "use --validate.every_epochs N"},
    {"num_sanity_val_steps", "use --validate.sanity_steps N", "validate.sanity_steps"},
    {"overfit_batches", "train on lockstep::take(data, N) with --sampler.shuffle false"},
    {"val_check_interval eval_steps eval_interval eval_every validation_steps",
     "use --validate.every_steps N, or --validate.every_epochs 0.25 for a part of an epoch"},
    {"limit_val_batches eval_iters max_eval_steps", "use --validate.max_batches N"},
    {"checkpoint_every save_every every_n_epochs save_strategy",
     "use --checkpoint.every_epochs N or --checkpoint.every_steps N"},
    {"save_steps save_interval checkpoint_interval checkpointing_steps every_n_train_steps",
     "use --checkpoint.every_steps N", "checkpoint.every_steps"},
    {"train_time_interval", "use --checkpoint.every_s SECONDS"},
    {"save_total_limit save_last checkpoints_total_limit", "use --checkpoint.keep_last N"},
    {"early_stop.monitor", "use --early_stop.metric METRIC"},
    {"plateau.monitor", "use --plateau.metric METRIC"},
    {"save_top_k", "use --checkpoint.keep_best N with --checkpoint.monitor METRIC"},
    {"checkpoint_best_only save_best_only metric_for_best_model", "use --checkpoint.monitor METRIC"},
    {"model_ckpt", "use --checkpoint.monitor METRIC with --checkpoint.mode and --checkpoint.keep_best N"},
    {"greater_is_better", "use --checkpoint.mode max"},
    {"enable_checkpointing save_ckpt", "use --checkpoint.enabled or --no-checkpoint.enabled"},
    {"resume_from_checkpoint resume_from resume_ckpt_path ckpt_path checkpoint_path snapshot_path load_checkpoint",
     "the same command resumes automatically; --resume DIR selects another checkpoint or run"},
    {"overwrite_output_dir from_scratch restart", "use --fresh"},
    {"pretrained pretrained_weights pretrained_model init_from load_weights finetune_from base_model_name "
     "pretrained_backbone_weights pretrained_head_weights model_name_or_path",
     "use --init_weights PATH", "init_weights"},
    {"output_dir out_dir save_dir log_folder root_folder default_root_dir workspace_dir ckpt_dir", "use --run_dir DIR",
     "run_dir"},
    {"experiment_name exp_name", "use --run_name NAME", "run_name"},
    {"config_path config_file config_name cfg", "use --config FILE"},
    {"log_every_n_steps logging_steps log_interval log_every print_every print_freq write_every",
     "use --report.every_steps N", "report.every_steps"},
    {"tensorboard use_tensorboard log_with_tensorboard", "use --report.tensorboard", "report.tensorboard"},
    {"enable_progress_bar progress_bar disable_tqdm", "use --report.progress or --no-report.progress"},
    {"enable_model_summary", "print lockstep::model_summary(module) in the program"},
    {"logger loggers log_with report_to tracker",
     "use --report.tensorboard, --report.csv or --report.jsonl; for another program --report.command"},
    {"wandb use_wandb", "a program that sends the rows there is started with --report.command"},
    {"zmq", "for the rows use --report.command; to stop: lockstep ctl RUN stop"},
    {"eval", "report metrics of the validation from the task of the program"},
    {"visualize_preds_during_training keep_viz viz_img_format",
     "log images in a callback, StageContext::log_image; --report.tensorboard writes them"},
    {"online_hard_keypoint_mining", "weigh the loss in the task of the program"},
    {"profiler", "add the callback lockstep::Profiler to the trainer"},
    {"callbacks", "add callbacks to the trainer in the program"},
    {"inference_mode reload_dataloaders_every_n_epochs plugins",
     "remove it: the program decides this, there is no such setting"},
    // communication
    {"ddp_timeout dist_timeout", "use --dist.timeout_s SECONDS", "dist.timeout_s"},
    {"bucket_cap_mb ddp_bucket_cap_mb", "use --dist.bucket_mib X", "dist.bucket_mib"},
    {"ddp_find_unused_parameters", "use --dist.find_unused_parameters", "dist.find_unused_parameters"},
    {"ddp_broadcast_buffers", "use --dist.broadcast_buffers", "dist.broadcast_buffers"},
    {"sync_batchnorm sync_batch_norm sync_bn use_sync_bn",
     "declare lockstep::SyncBatchNorm in the module; --dist.require_sync_batch_norm refuses any other batch norm"},
    {"zero_stage zero_optimization zero_redundancy_optimizer shard_optimizer_state sharded_ddp",
     "use --dist.shard_optimizer, which is ZeRO stage 1"},
    {"use_deepspeed use_fsdp fsdp deepspeed fsdp_config deepspeed_config",
     "not available; --dist.shard_optimizer shards the optimizer state over the ranks"},
    {"use_megatron_lm tp_size pp_size tensor_parallel pipeline_parallel",
     "not available: every rank has the whole model"},
    {"dynamo_backend torch_compile compile", "not available in LibTorch"},
    {"downcast_bf16", "use --precision bf16"},
    {"detect_nvlink", "remove it: NCCL finds NVLink itself"},
    {"cache_strategy data_pipeline_fw cache_img_path use_existing_imgs delete_cache_imgs_after_training "
     "parallel_caching cache_workers",
     "wrap the data set in the program: lockstep::memory_cache or lockstep::disk_cache"},
    {"gradient_as_bucket_view", "remove it: gradients are always views of the buckets"},
};

bool contains(std::string_view names, std::string_view wanted) {
  for (auto at = names.find(wanted); at != std::string_view::npos; at = names.find(wanted, at + 1)) {
    const auto end = at + wanted.size();
    if ((at == 0 || names[at - 1] == ' ') && (end == names.size() || names[end] == ' ')) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::span<const ForeignName> foreign_names() { return kRows; }

const ForeignName* find_foreign_name(std::string_view name) {
  const std::string whole = normal_name(to_lower(name));
  const std::string last = whole.substr(whole.rfind('.') + 1);  // npos + 1 is 0
  for (const std::string& wanted : {whole, last}) {
    for (const ForeignName& row : kRows) {
      if (!wanted.empty() && contains(row.names, wanted)) {
        return &row;
      }
    }
  }
  return nullptr;
}

}  // namespace lockstep
