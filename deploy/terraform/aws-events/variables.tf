variable "buckets" {
  description = "Names of the buckets whose events are wanted. They exist already, in this account and region."
  type        = set(string)

  validation {
    condition     = length(var.buckets) > 0
    error_message = "At least one bucket."
  }
}

variable "name" {
  description = "Name of the queue, of the rule and of the policy."
  type        = string
  default     = "frazil-content-events"
}

variable "eventbridge" {
  description = "Send events by EventBridge, which leaves other notifications of the buckets free to be configured elsewhere."
  type        = bool
  default     = false
}

variable "events" {
  description = "What S3 tells directly. Reads are not told: they change nothing."
  type        = list(string)
  default = [
    "s3:ObjectCreated:*",
    "s3:ObjectRemoved:*",
    "s3:LifecycleExpiration:*",
    "s3:LifecycleTransition",
    "s3:IntelligentTiering",
    "s3:ObjectRestore:*",
    "s3:ObjectTagging:*",
    "s3:ObjectAcl:Put",
  ]
}

variable "detail_types" {
  description = "What EventBridge tells."
  type        = list(string)
  default = [
    "Object Created",
    "Object Deleted",
    "Object Restore Initiated",
    "Object Restore Completed",
    "Object Restore Expired",
    "Object Storage Class Changed",
    "Object Access Tier Changed",
    "Object Tags Added",
    "Object Tags Deleted",
    "Object ACL Updated",
  ]
}

variable "prefix" {
  description = "Only keys that begin with this."
  type        = string
  default     = null
}

variable "visibility_timeout_seconds" {
  description = "How long a message is hidden while Frazil makes it durable."
  type        = number
  default     = 60
}

variable "message_retention_seconds" {
  description = "How long the queue keeps events while nobody takes them; at most 14 days."
  type        = number
  default     = 1209600
}

variable "max_receive_count" {
  description = "How often a message is given out before it goes to the dead-letter queue."
  type        = number
  default     = 20
}

variable "tags" {
  description = "Tags of everything."
  type        = map(string)
  default     = {}
}
