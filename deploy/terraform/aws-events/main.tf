# Events of S3 buckets into a queue of SQS, from which `frazil content ingest --sqs` takes them.

terraform {
  required_version = ">= 1.5"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

locals {
  bucket_arns     = [for name in var.buckets : "arn:${data.aws_partition.current.partition}:s3:::${name}"]
  directly        = var.eventbridge ? toset([]) : var.buckets
  over_the_bridge = var.eventbridge ? var.buckets : toset([])
}

# What was received max_receive_count times and never deleted. Look at it: it means that the log was away for long,
# or does not take the message.
resource "aws_sqs_queue" "dead" {
  name                      = "${var.name}-dead"
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = true
  tags                      = var.tags
}

resource "aws_sqs_queue" "events" {
  name                       = var.name
  visibility_timeout_seconds = var.visibility_timeout_seconds
  message_retention_seconds  = var.message_retention_seconds
  receive_wait_time_seconds  = 20
  sqs_managed_sse_enabled    = true
  tags                       = var.tags

  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead.arn
    maxReceiveCount     = var.max_receive_count
  })
}

resource "aws_sqs_queue_redrive_allow_policy" "dead" {
  queue_url = aws_sqs_queue.dead.id

  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    sourceQueueArns   = [aws_sqs_queue.events.arn]
  })
}

# Who may send: S3 for these buckets of this account, or the rule of EventBridge.
data "aws_iam_policy_document" "senders" {
  dynamic "statement" {
    for_each = var.eventbridge ? [] : [1]

    content {
      sid       = "FromS3"
      actions   = ["sqs:SendMessage"]
      resources = [aws_sqs_queue.events.arn]

      principals {
        type        = "Service"
        identifiers = ["s3.amazonaws.com"]
      }

      condition {
        test     = "ArnEquals"
        variable = "aws:SourceArn"
        values   = local.bucket_arns
      }

      condition {
        test     = "StringEquals"
        variable = "aws:SourceAccount"
        values   = [data.aws_caller_identity.current.account_id]
      }
    }
  }

  dynamic "statement" {
    for_each = aws_cloudwatch_event_rule.objects

    content {
      sid       = "FromEventBridge"
      actions   = ["sqs:SendMessage"]
      resources = [aws_sqs_queue.events.arn]

      principals {
        type        = "Service"
        identifiers = ["events.amazonaws.com"]
      }

      condition {
        test     = "ArnEquals"
        variable = "aws:SourceArn"
        values   = [statement.value.arn]
      }
    }
  }
}

resource "aws_sqs_queue_policy" "events" {
  queue_url = aws_sqs_queue.events.id
  policy    = data.aws_iam_policy_document.senders.json
}

# A bucket has one notification configuration: this resource replaces what was configured by other means.
resource "aws_s3_bucket_notification" "direct" {
  for_each = local.directly
  bucket   = each.value

  queue {
    id            = var.name
    queue_arn     = aws_sqs_queue.events.arn
    events        = var.events
    filter_prefix = var.prefix
  }

  depends_on = [aws_sqs_queue_policy.events]
}

resource "aws_s3_bucket_notification" "bridged" {
  for_each    = local.over_the_bridge
  bucket      = each.value
  eventbridge = true
}

resource "aws_cloudwatch_event_rule" "objects" {
  count       = var.eventbridge ? 1 : 0
  name        = var.name
  description = "Changes of objects, for Frazil"
  tags        = var.tags

  event_pattern = jsonencode({
    source      = ["aws.s3"]
    detail-type = var.detail_types
    detail = merge(
      { bucket = { name = tolist(var.buckets) } },
      var.prefix == null ? {} : { object = { key = [{ prefix = var.prefix }] } },
    )
  })
}

resource "aws_cloudwatch_event_target" "events" {
  count     = var.eventbridge ? 1 : 0
  rule      = aws_cloudwatch_event_rule.objects[0].name
  target_id = var.name
  arn       = aws_sqs_queue.events.arn
}

# What `frazil content ingest --sqs` needs, and, to ask the buckets where events do not tell enough, the pipeline.
data "aws_iam_policy_document" "frazil" {
  statement {
    sid       = "TakeEvents"
    resources = [aws_sqs_queue.events.arn]

    actions = [
      "sqs:ReceiveMessage",
      "sqs:DeleteMessage",
      "sqs:ChangeMessageVisibility",
      "sqs:GetQueueAttributes",
    ]
  }

  statement {
    sid       = "ListBuckets"
    actions   = ["s3:ListBucket", "s3:ListBucketVersions"]
    resources = local.bucket_arns
  }

  statement {
    sid       = "AskForObjects"
    actions   = ["s3:GetObject", "s3:GetObjectVersion", "s3:GetObjectTagging", "s3:GetObjectVersionTagging"]
    resources = [for arn in local.bucket_arns : "${arn}/*"]
  }
}

resource "aws_iam_policy" "frazil" {
  name        = var.name
  description = "Frazil takes events from the queue and asks the buckets"
  policy      = data.aws_iam_policy_document.frazil.json
  tags        = var.tags
}
