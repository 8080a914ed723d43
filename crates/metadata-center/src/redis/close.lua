-- Removes a cluster from the set of clusters KEYS[1], unless it was used since.
local used = redis.call('ZSCORE', KEYS[1], ARGV[1])
if used and tonumber(used) <= tonumber(ARGV[2]) then
  redis.call('ZREM', KEYS[1], ARGV[1])
  return 1
end
return 0
